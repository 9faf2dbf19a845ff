#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "memory/host/host_memory.h"
#include "runtime/checkpoint/checkpoint.h"

namespace terrace {

// The state of a step, copied out of its homes: a checkpoint is written from it while the next
// steps change these. Of each unit the parameters that train, and what their updates keep, as fp32.
class StateCopy {
 public:
  // The bytes that it takes.
  static std::size_t size_bytes(const CheckpointedModel& model);

  // Copies the state by `fetch`. Throws OutOfMemory, and what `fetch` throws.
  StateCopy(const CheckpointedModel& model, FetchState fetch);

  // As FetchState; within the parameters that train.
  void read(StateField field, const UnitLayout& unit, std::int64_t begin,
            std::span<float> out) const;

 private:
  HostMemory memory_;
  std::map<std::pair<std::int64_t, StateField>, std::span<float>> parts_;  // by unit and field
};

// Writes one checkpoint at a time on a thread of its own, which yields the processors to those that
// train. Its destructor waits for the one that is being written.
class CheckpointWriter {
 public:
  ~CheckpointWriter();
  CheckpointWriter() = default;
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  struct Job {
    std::string run_dir;
    CheckpointProgress progress;
    CheckpointedModel model;  // borrowed until the end
    StateCopy state;
    FileSystem& disk = system_files();
  };
  // None is being written, and the result of the one before was taken.
  void start(Job job);

  struct Result {
    std::string path;            // of the checkpoint; empty: there is none
    std::exception_ptr problem;  // of write_checkpoint()
  };
  // Waits so long at most. Returns whether none is being written any more.
  bool ends_within(std::chrono::milliseconds limit);
  // Returns the result once, when there is one; without waiting.
  std::optional<Result> poll();
  // Returns the result once, after waiting for it; none where nothing was started since.
  std::optional<Result> wait();

 private:
  void write(const Job& job) noexcept;

  std::mutex mutex_;
  std::condition_variable done_changed_;
  bool is_done_ = false;  // guarded by mutex_
  Result result_;         // of the thread until is_done_
  std::jthread thread_;
};

}  // namespace terrace
