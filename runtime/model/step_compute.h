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

// Which compute of a step is to run.
struct ComputeTask {
  std::int32_t unit = 0;
  UnitPass pass =
      UnitPass::kForward;        // of a head in a training step: kBackward, which is all of it
  std::int32_t step = 0;         // of the steps that the unit's description has for the pass
  std::int32_t micro_batch = 0;  // -1: all, in an embedding's backward
  // Of a unit that a schedule uses several times in a micro-batch: which use, counted from 0 in the
  // order of the forwards. A backward or recomputation has that of its forward.
  std::int32_t use = 0;
  // Of an embedding's backward alone: the gradient of its output in each micro-batch, and room in
  // host memory for kEmbeddingViews views a micro-batch. Both are empty elsewhere.
  std::span<std::byte* const> hidden_gradients = {};
  std::span<TensorView> views = {};
};

// What the units of a step compute: the other half of their description (UnitModel), which says
// what each task touches.
class StepCompute {
 public:
  virtual ~StepCompute() = default;

  // Computes one task: reads and writes what the description says, in the memory that `memory`
  // names by role, and keeps no pointer to it. Parameters are in the compute type, gradients in
  // fp32.
  //
  // The gradient is that of the sum of the losses times memory.gradient_scale, of every element
  // that trains, zero where the sequence is padded. It is first complete by itself and then stored,
  // or added to what is there, as memory.gradient_mode says: so the bits are the same wherever the
  // sum over micro-batches is kept. A loss is one fp64, the sum over the micro-batch. The same task
  // with the same input has to give the same bits, where runs are to be compared.
  //
  // Called by the compute lane's thread, one task at a time, in the order of the schedule; on a
  // device with streams it queues its work on context.stream and does not wait for it.
  // context.workspace has as many bytes as the description says. What it throws fails the step and
  // comes out of finish_step(). It may take as long as it likes: it may also hand the task over to
  // another thread, and return when that is done.
  virtual void run(const KernelContext& context, const ComputeTask& task,
                   const UnitMemory& memory) = 0;
};

}  // namespace terrace
