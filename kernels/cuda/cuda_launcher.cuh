#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "kernels/cuda/cuda_block.cuh"
#include "kernels/shared/block.h"
#include "memory/cuda/cuda_error.h"

// The Launcher of kernels/shared/block.h on a GPU: everything is enqueued on the context's stream.
namespace terrace {

class CudaLauncher {
 public:
  CudaLauncher(cudaStream_t stream, std::span<std::byte> workspace)
      : stream_(stream), workspace_(workspace) {}

  template <int Threads, typename Kernel>
  void launch(std::string_view name, const Kernel& kernel, std::int64_t blocks,
              std::size_t shared_bytes = 0) {
    constexpr std::size_t kPlainSharedMax = 48 * 1024;
    if (blocks == 0) return;
    TERRACE_CHECK_LT(blocks, std::int64_t{1} << 31);
    if (shared_bytes > kPlainSharedMax) {
      check_cuda(cudaFuncSetAttribute(run_kernel<Threads, Kernel>,
                                      cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      static_cast<int>(shared_bytes)),
                 "cudaFuncSetAttribute", name);
    }
    run_kernel<Threads, Kernel>
        <<<static_cast<unsigned>(blocks), Threads, shared_bytes, stream_>>>(kernel);
    check_cuda(cudaGetLastError(), "kernel launch", name);
  }

  void copy(void* target, const void* source, std::size_t bytes) {
    if (bytes == 0) return;
    check_cuda(cudaMemcpyAsync(target, source, bytes, cudaMemcpyDeviceToDevice, stream_),
               "cudaMemcpyAsync");
  }

  void zero(void* target, std::size_t bytes) {
    if (bytes != 0) check_cuda(cudaMemsetAsync(target, 0, bytes, stream_), "cudaMemsetAsync");
  }

  std::span<std::byte> workspace() const { return workspace_; }

 protected:
  cudaStream_t stream() const { return stream_; }

 private:
  const cudaStream_t stream_;
  const std::span<std::byte> workspace_;
};

}  // namespace terrace
