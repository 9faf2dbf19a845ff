#pragma once

#include <cstddef>

#include "memory/device.h"
#include "memory/tensor.h"

// Only in builds with CUDA.
namespace terrace {

// DeviceArithmetic (parallel/rank_order_sums.h) on the GPU that is current in this thread, by
// kernels/shared/rank_sum.h. These functions enqueue, and throw DeviceError if they cannot.
void cuda_add_ranks(const TensorView& sum, const std::byte* parts, int ranks, NativeStream stream);
void cuda_pack_rows(std::byte* target, const StridedRows& source, NativeStream stream);

}  // namespace terrace
