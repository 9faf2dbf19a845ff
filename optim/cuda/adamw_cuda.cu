#include "kernels/cuda/cuda_launcher.cuh"
#include "optim/cuda/adamw_cuda.h"
#include "optim/shared/adamw_kernels.h"

namespace terrace {

void adamw_cuda(const KernelContext& context, const ParameterUpdate& update) {
  CudaLauncher launcher(static_cast<cudaStream_t>(context.stream.handle), context.workspace);
  shared::adamw(launcher, update);
}

}  // namespace terrace
