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
  // Both start a checkpoint: none is being written, and the result of the one before was taken.
  // They throw OutOfMemory and EnvironmentError, and none is being written then.
  //
  // Reads the state before it returns; what is not yet in files is in memory then. Throws what
  // `fetch` throws, too: no checkpoint is being written then, and there is no result.
  void start(Job job, FetchState fetch);
  using SharedFetch = std::function<void(StateField field, const UnitLayout& unit,
                                         std::int64_t begin, std::span<float> out)>;
  // Returns at once: the state is read on a thread, beside the steps that follow. Closes the gate,
  // and opens it for each unit that is read, and for all when nothing more is read.
  void start_beside(Job job, SharedFetch fetch, HomeGate& gate);

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
  void prepare(const Job& job);
  void start_writing(Job job);
  void write(const Job& job) noexcept;
  void read_beside(const SharedFetch& fetch, HomeGate& gate) noexcept;

  std::mutex mutex_;
  std::condition_variable done_changed_;
  bool is_done_ = false;  // guarded by mutex_
  Result result_;         // of the thread until is_done_
  std::unique_ptr<StateStaging> staging_;
  std::jthread reader_;
  std::jthread thread_;
};

}  // namespace terrace
