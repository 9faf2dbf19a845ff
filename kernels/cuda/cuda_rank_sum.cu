#include "kernels/cuda/cuda_launcher.cuh"
#include "kernels/cuda/cuda_rank_sum.h"
#include "kernels/shared/rank_sum.h"

namespace terrace {

void cuda_add_ranks(const TensorView& sum, const std::byte* parts, int ranks, NativeStream stream) {
  CudaLauncher launcher(static_cast<cudaStream_t>(stream.handle), {});
  shared::add_ranks(launcher, sum, parts, ranks);
}

void cuda_pack_rows(std::byte* target, const StridedRows& source, NativeStream stream) {
  const std::size_t row_bytes = static_cast<std::size_t>(source.width) * size_of(source.dtype);
  const std::size_t pitch = static_cast<std::size_t>(source.stride) * size_of(source.dtype);
  check_cuda(cudaMemcpy2DAsync(target, row_bytes, source.data, pitch, row_bytes,
                               static_cast<std::size_t>(source.rows), cudaMemcpyDeviceToDevice,
                               static_cast<cudaStream_t>(stream.handle)),
             "cudaMemcpy2DAsync");
}

}  // namespace terrace
