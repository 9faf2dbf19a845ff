#pragma once

#include "kernels/cuda/cuda_launcher.cuh"
#include "optim/cuda/rule_cuda.h"
#include "optim/rules/rules.h"
#include "optim/shared/update_kernels.h"

namespace terrace {

template <typename Rule>
void rule_cuda(const KernelContext& context, const ParameterUpdate& update) {
  CudaLauncher launcher(static_cast<cudaStream_t>(context.stream.handle), context.workspace);
  shared::update<Rule>(launcher, update);
}

}  // namespace terrace
