#include "kernels/cuda/kernel_launcher.cuh"

namespace terrace::shared {

template void attention_forward(KernelLauncher&, const AttentionForward&);

}  // namespace terrace::shared
