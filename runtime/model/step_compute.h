#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/kernel_context.h"
#include "memory/tensor.h"
#include "runtime/model/unit_memory.h"
#include "runtime/model/unit_model.h"

namespace terrace {

inline constexpr std::size_t kEmbeddingViews = 3;

// The part of a step's compute that is to run.
struct ComputeTask {
  std::int32_t unit = 0;
  UnitPass pass = UnitPass::kForward;  // a head in a training step: kBackward, which is all of it
  std::int32_t step = 0;               // the number of the pass's step in the unit's description
  std::int32_t micro_batch = 0;        // -1: all of them, in an embedding's backward
  // The number of the use, where a schedule uses a unit several times in a micro-batch: counted
  // from 0 in the order of the forwards. A backward or recomputation has the number of its forward.
  std::int32_t use = 0;
  // For an embedding's backward only: the gradient of its output in each micro-batch, and room in
  // host memory for kEmbeddingViews views a micro-batch. Both are empty elsewhere.
  std::span<std::byte* const> hidden_gradients = {};
  std::span<TensorView> views = {};
};

// The computation of a step's units. It is the other half of their description (UnitModel), which
// says what each task touches.
class StepCompute {
 public:
  virtual ~StepCompute() = default;

  // Computes one task: reads and writes what the description says, in the memory that `memory`
  // names by role, and keeps no pointer to it. Parameters are in the type of their group,
  // gradients in fp32.
  //
  // The gradient is the derivative of the sum of the losses times memory.gradient_scale, for every
  // element that trains, and zero where the sequence is padded. The task first computes it
  // completely and then stores it, or adds it to what is there, as memory.gradient_mode and
  // GroupMemory::gradient_mode say. So the bits are the same wherever the sum over micro-batches is
  // kept. A loss is one fp64 number, the sum over the micro-batch. Where runs are to be compared,
  // the same task with the same input has to give the same bits.
  //
  // Called by the compute lane's thread, one task at a time, in the order of the schedule. On a
  // device with streams it queues its work on context.stream and does not wait for it.
  // context.workspace has as many bytes as the description says. An exception that it throws fails
  // the step and comes out of finish_step(). It may take as long as it likes. It may also hand the
  // task over to another thread, and return when that is done.
  virtual void run(const KernelContext& context, const ComputeTask& task,
                   const UnitMemory& memory) = 0;
};

}  // namespace terrace
