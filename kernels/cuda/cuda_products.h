#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "kernels/shared/block.h"
#include "memory/device.h"

namespace terrace {

// What a context's workspace ends with, for the products of cuBLASLt.
inline constexpr std::size_t kCudaProductWorkspace = std::size_t{32} << 20;

// cuBLASLt's handle for one GPU, and the algorithm chosen for each shape so far. One thread at a
// time.
//
// An algorithm is asked for once for each shape, types, strides and alignments, with fp32 sums
// (CUBLAS_COMPUTE_32F: no TF32), no sums of atomic additions, and at most kCudaProductWorkspace
// bytes; it is kept as long as this lives, so that equal calls have equal bits. Between processes
// the heuristics of one version of cuBLASLt on one kind of GPU give the same answer.
class CudaProducts {
 public:
  // Of the GPU that is current in this thread. Throws DeviceError.
  CudaProducts();
  ~CudaProducts();
  CudaProducts(const CudaProducts&) = delete;
  CudaProducts& operator=(const CudaProducts&) = delete;

  // Enqueues the product. False where cuBLASLt has no algorithm for it: nothing was enqueued.
  bool enqueue(const shared::Product& product, std::span<std::byte> workspace, NativeStream stream);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace terrace
