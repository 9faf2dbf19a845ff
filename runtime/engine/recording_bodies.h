#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "memory/host/worker_arena.h"
#include "runtime/engine/hash_probes.h"
#include "runtime/step/lane_executor.h"

namespace terrace {

// Records hashes of the values that a program's ops read and write, around the bodies that compute
// them. Each op's lane hashes the op's own values with the lane's threads, before the op and after
// it, so no lane waits for another one more than without. Makes all its memory when it is made.
//
// begin(), finish() and drain() are called by the thread that starts the runs.
class RecordingBodies final : public OpBodies {
 public:
  struct Parts {
    OpBodies& bodies;
    WorkerArena& compute_workers;
    WorkerArena& update_workers;
    HashSink& sink;
  };

  // Borrows all. Memory of the program that the host does not reach cannot be hashed.
  RecordingBodies(const Parts& parts, const HashedTraining& training);
  // Gives the sink the steps that are not complete, such as the last steps of a run that has
  // failed. The lanes must have ended.
  ~RecordingBodies() override;
  RecordingBodies(const RecordingBodies&) = delete;
  RecordingBodies& operator=(const RecordingBodies&) = delete;

  // Begins a step, before its run starts: hashes its input, of all micro-batches.
  void begin(std::int64_t step, std::span<const std::byte> input);
  // Is told that the run that began the step is retired. The updates of the step before it are then
  // complete.
  void finish(std::int64_t step) { write_before(step); }
  // Is told that the updates of all steps are complete.
  void drain() { write_before(last_ + 1); }

  void run(const Op& op, const RunInput& input, NativeStream stream) override;
  bool takes_checksums(const Op& transfer) const override {
    return parts_.bodies.takes_checksums(transfer);
  }
  bool failed(const std::exception_ptr& error) noexcept override {
    return parts_.bodies.failed(error);
  }

 private:
  // The run of a step, and the one that makes its updates, are in flight with the run of the next
  // step but one: three steps at a time.
  static constexpr std::int64_t kSteps = 3;

  void write_before(std::int64_t step);
  std::vector<std::uint64_t>& hashes_of(std::int64_t step) {
    return hashes_.at(static_cast<std::size_t>(step % kSteps));
  }
  std::uint64_t hash_of(const HashProbe& probe, const Op& op, const RunInput& input);
  bool is_of_run(const HashProbe& probe, const RunInput& input) const;

  const Parts parts_;
  const Program& program_;
  const HashProbes probes_;
  std::array<std::vector<std::uint64_t>, kSteps> hashes_;
  std::array<std::vector<std::uint64_t>, kLaneCount> blocks_;  // of the value that a lane hashes
  std::int64_t next_ = 0;                                      // the step to write next
  std::int64_t last_ = -1;                                     // the last step that began
};

}  // namespace terrace
