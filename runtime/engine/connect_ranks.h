#pragma once

#include <cstddef>
#include <span>

#include "base/dtype.h"
#include "memory/device.h"
#include "runtime/engine/step_ranks.h"

namespace terrace {

// The types of gradients and hidden states when ranks add them.
struct SummedTypes {
  DType gradients = DType::kF32;
  DType hidden = DType::kF32;
};

// Makes a small first call of every kind that a step makes on each of its communicators, where
// ranks have a device each. NCCL connects ranks when they make their first call of a kind (of host
// memory too, with torchrun), and allocates memory of the GPU for that. On a GPU whose streams wait
// for other ranks the allocation can wait for those streams, while the other ranks wait for this
// one. So it is done before the first step: one call after another, each complete before the next,
// in an order that is the same on all ranks. All ranks call it. Overwrites the beginning of
// `memory`, which is the device's. Throws CommError, DeviceError.
void connect_ranks(const StepRanks& ranks, const SummedTypes& types, std::span<std::byte> memory,
                   Device& device);

}  // namespace terrace
