#include "kernels/cuda/cuda_launcher.cuh"
#include "kernels/cuda/cuda_rank_sum.h"
#include "kernels/shared/rank_sum.h"

namespace terrace {

void cuda_add_ranks(const TensorView& sum, const std::byte* parts, int ranks, NativeStream stream) {
  CudaLauncher launcher(static_cast<cudaStream_t>(stream.handle), {});
  shared::add_ranks(launcher, sum, parts, ranks);
}

void cuda_pack_rows(std::byte* target, const std::byte* source, int rows, std::size_t row_bytes,
                    std::size_t stride_bytes, NativeStream stream) {
  check_cuda(cudaMemcpy2DAsync(target, row_bytes, source, stride_bytes, row_bytes,
                               static_cast<std::size_t>(rows), cudaMemcpyDeviceToDevice,
                               static_cast<cudaStream_t>(stream.handle)),
             "cudaMemcpy2DAsync");
}

}  // namespace terrace
