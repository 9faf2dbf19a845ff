#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "kernels/shared/block.h"
#include "memory/device.h"

namespace terrace {

// Bytes at the end of a context's workspace, for the products of cuBLASLt.
inline constexpr std::size_t kCudaProductWorkspace = std::size_t{32} << 20;

// cuBLASLt's handle for one GPU, and the algorithm chosen for each shape so far. One thread at a
// time may use it.
//
// cuBLASLt is asked once for an algorithm for each combination of shape, types, strides and
// alignments, with fp32 sums (CUBLAS_COMPUTE_32F: no TF32), without atomic additions, and with at
// most kCudaProductWorkspace bytes. The algorithm is kept as long as this object lives, so that
// equal calls have equal bits. In another process, the heuristics of the same version of cuBLASLt
// on the same kind of GPU give the same answer.
class CudaProducts {
 public:
  // Creates a handle for the GPU that is current in this thread. Throws DeviceError.
  CudaProducts();
  ~CudaProducts();
  CudaProducts(const CudaProducts&) = delete;
  CudaProducts& operator=(const CudaProducts&) = delete;

  // Enqueues the product. Returns false, with nothing enqueued, where cuBLASLt has no algorithm for
  // it.
  bool enqueue(const shared::Product& product, std::span<std::byte> workspace, NativeStream stream);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace terrace
