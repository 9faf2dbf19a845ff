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

// Writes one checkpoint at a time on a thread of its own, which yields the processors to the
// threads that train. The state is read by the caller, or by a second thread while the next steps
// run. The destructor waits for the checkpoint that is being written.
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
  // start() and start_beside() both start a checkpoint. The caller ensures that none is being
  // written and that the result of the one before was taken. Both throw OutOfMemory and
  // EnvironmentError; then no checkpoint is being written.
  //
  // Reads the whole state before it returns; the part that is not yet in files is then in memory.
  // Also throws what `fetch` throws: then no checkpoint is being written, and there is no result.
  void start(Job job, FetchState fetch);
  using SharedFetch = std::function<void(StateField field, const UnitLayout& unit,
                                         std::int64_t begin, std::span<float> out)>;
  // Returns at once: a thread reads the state beside the steps that follow. Closes the gate, opens
  // it for each unit once the unit is read, and for all units when nothing more is read.
  void start_beside(Job job, SharedFetch fetch, HomeGate& gate);

  struct Result {
    std::string path;            // of the checkpoint; empty: there is none
    std::exception_ptr problem;  // of write_checkpoint()
    bool is_of_reading = false;  // `fetch` threw the problem
  };
  // Waits for at most `limit`. Returns whether no checkpoint is being written any more.
  bool ends_within(std::chrono::milliseconds limit);
  // Returns the result once, if there is one; does not wait.
  std::optional<Result> poll();
  // Waits for the result and returns it once; none where nothing was started since the last one.
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
