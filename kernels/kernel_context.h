#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "memory/device.h"
#include "memory/host/worker_arena.h"

namespace terrace {

class CudaProducts;    // kernels/cuda/cuda_products.h
class CudnnAttention;  // kernels/cuda/cudnn_attention.h

// The resources that a kernel call may use besides its arguments.
struct KernelContext {
  WorkerArena* workers = nullptr;    // CPU kernels; never null there
  NativeStream stream;               // CUDA kernels
  std::span<std::byte> workspace;    // at least what the op's workspace function says; 64-aligned
  CudaProducts* products = nullptr;  // CUDA kernels; never null there
  CudnnAttention* attention = nullptr;  // CUDA kernels; null: cuDNN is not called
};

// Whether a gradient replaces what is in its buffer or is added to it. Either way the new gradient
// is first completed by itself in fp32. Then it is stored as 0 + g or added once, so that the two
// ways give the same bits (docs/numerics.md).
enum class GradientMode : std::uint8_t { kAssign, kAccumulate };

}  // namespace terrace
