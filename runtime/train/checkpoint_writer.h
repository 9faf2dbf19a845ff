#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>

#include "runtime/checkpoint/checkpoint.h"
#include "runtime/step/home_gate.h"
#include "runtime/train/state_staging.h"

namespace terrace {

// Writes one checkpoint at a time on a thread of its own, which yields the processors to those that
// train. The state is read by the caller, or by a second thread while the next steps run. The
// destructor waits for the checkpoint that is being written.
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
    std::size_t staging_bytes = 0;
    FileSystem& disk = system_files();
  };
  // Starts a checkpoint; read() or read_beside() follows. None is being written, and the result of
  // the one before was taken. Throws OutOfMemory, and none is being written then.
  void start(Job job);
  // Reads the state, and returns when the files' thread has all that it does not yet have in
  // memory. Throws what `fetch` throws: no checkpoint is being written then, and there is no
  // result.
  void read(FetchState fetch);
  using SharedFetch = std::function<void(StateField field, const UnitLayout& unit,
                                         std::int64_t begin, std::span<float> out)>;
  // Reads it on a thread, beside the steps that follow. Closes the gate, and opens it for each unit
  // that is read, and for all when nothing more is read.
  void read_beside(SharedFetch fetch, HomeGate& gate);

  struct Result {
    std::string path;            // of the checkpoint; empty: there is none
    std::exception_ptr problem;  // of write_checkpoint()
    bool is_of_reading = false;  // the problem: it is what `fetch` threw
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
  std::unique_ptr<StateStaging> staging_;
  std::jthread reader_;
  std::jthread thread_;
};

}  // namespace terrace
