#pragma once

#include <cstddef>
#include <span>

#include "base/dtype.h"
#include "memory/device.h"
#include "runtime/engine/step_ranks.h"

namespace terrace {

// What gradients and hidden states are when ranks add them.
struct SummedTypes {
  DType gradients = DType::kF32;
  DType hidden = DType::kF32;
};

// A small first call of every kind that a step makes on each of its communicators, where ranks have
// a device each. NCCL connects ranks when they first make one (of host memory too, with torchrun),
// and takes memory of the GPU for it: on one whose streams wait for other ranks that can wait for
// those, and they for this rank. So it is done before the first step, one call after another, each
// complete before the next, in an order that all ranks have. All call it. Overwrites the beginning
// of `memory`, which is the device's. Throws CommError, DeviceError.
void connect_ranks(const StepRanks& ranks, const SummedTypes& types, std::span<std::byte> memory,
                   Device& device);

}  // namespace terrace
