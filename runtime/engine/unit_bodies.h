#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <span>
#include <vector>

#include "runtime/engine/norm_bodies.h"
#include "runtime/engine/op_bytes.h"
#include "runtime/model/step_compute.h"
#include "runtime/step/step_model.h"

namespace terrace {

// The largest number of buffers between the steps of a unit's pass.
inline constexpr std::size_t kMostBetween = 64;

// The bodies of the ops in which units compute. Used by the compute lane alone.
class UnitBodies {
 public:
  // Borrows all.
  UnitBodies(const OpBytes& bytes, const StepModel& model, StepCompute& compute);

  void run(const Op& op, const RunInput& input, const KernelContext& context);
  // Returns whether the compute of a unit has thrown. By any thread.
  bool has_failed() const { return has_failed_; }

 private:
  // The memory in which a unit finds the buffers of an op.
  struct OpMemory {
    void fill(UnitBodies& bodies, const Op& op, const RunInput& input);

    UnitMemory memory;
    std::array<std::byte*, kMostBetween> between{};
  };

  // Runs a backward of the micro-batches whose gradients the op reads, as far as the run has them.
  void joined_backward(const Op& op, const RunInput& input, const KernelContext& context);
  void run_task(const KernelContext& context, const ComputeTask& task, const UnitMemory& memory);
  // Return the memory of the groups and of the inputs of the op's unit. Good until the next call.
  std::span<const GroupMemory> group_memory(const Op& op);
  std::span<const InputMemory> input_memory(const Op& op);

  const OpBytes bytes_;
  const StepModel& model_;
  StepCompute& compute_;
  std::atomic<bool> has_failed_{false};
  // The arguments of the task that runs.
  std::vector<std::byte*> hidden_gradients_;
  std::vector<TensorView> embedding_views_;
  std::vector<GroupMemory> groups_;
  std::vector<InputMemory> inputs_;
};

}  // namespace terrace
