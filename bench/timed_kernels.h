#pragma once

#include <cstdint>

#include "runtime/engine/compute_backend.h"

namespace terrace {

// What a kernel is part of, as the benchmarks of a step tell it.
enum class KernelPart : std::uint8_t {
  kMatmul,   // products with the weights of blocks
  kProduct,  // attention and the head
  kElement,  // norms, activations, residual sums, rotations
  kOther     // embedding, sums and casts of gradients and parameters, partial norms
};
inline constexpr std::size_t kKernelParts = 4;

// The CPU device with kernels each of which adds the time of its call to the sum of its part. The
// sums are of the process: measure one engine at a time.
const ComputeBackend& timed_backend();

// Seconds of all calls so far.
double kernel_seconds(KernelPart part);

}  // namespace terrace
