#pragma once

#include <cstdint>

#include "runtime/engine/compute_backend.h"

namespace terrace {

// The part of a step that a kernel belongs to, as the benchmarks of a step tell it.
enum class KernelPart : std::uint8_t {
  kMatmul,   // products with the weights of blocks
  kProduct,  // attention and the head
  kElement,  // norms, activations, residual sums, rotations
  kOther     // embedding, sums and casts of gradients and parameters, partial norms
};
inline constexpr std::size_t kKernelParts = 4;

// Returns the CPU device with kernels that add the time of each call to the sum of their part.
// There is one set of sums in the process, so measure one engine at a time.
const ComputeBackend& timed_backend();

// Returns the seconds of all calls so far.
double kernel_seconds(KernelPart part);

}  // namespace terrace
