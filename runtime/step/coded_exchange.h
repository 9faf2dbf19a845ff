#pragma once

#include <cstdint>

#include "runtime/step/draft.h"
#include "runtime/step/step_model.h"

// The ops by which a chunk passes between data-parallel ranks as codes (kernels/wire_ops.h). They
// make and read the codes on a lane of their own: where they wait for another rank, no compute and
// no update waits behind them.
namespace terrace {

// Returns whether an op of the lane of codes runs on the device: codes are made where the chunk is.
bool codes_on_device(const Program& program, const Op& op);

// A chunk of gradients that is added up over ranks.
struct CodedSum {
  Range whole;   // this rank's sum over micro-batches, in fp32
  Range errors;  // of the chunk, in the same tier; without a buffer where errors are not kept
  Range target;  // gets this rank's part of the sum, in the gradient's type
  std::int32_t chunk = 0;
};
// Sends each rank the codes of its part, and adds up the codes of this rank's part. Returns the
// target. The parts are added in rank order, in fp32, and the sum is rounded once.
Range reduce_coded(Mover& mover, Draft& draft, const StepModel& model, const CodedSum& sum);

// A chunk of parameters that is gathered from all ranks.
struct CodedGather {
  Range own;  // this rank's part, in `whole` or elsewhere in the same tier
  Range whole;
  std::int32_t group = 0;
  std::int32_t chunk = 0;
};
// Each rank decodes all parts, its own too, so that all ranks compute with the same numbers.
void gather_coded(Mover& mover, Draft& draft, const StepModel& model, const CodedGather& gather);

}  // namespace terrace
