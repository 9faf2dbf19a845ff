#include "kernels/cuda/kernel_launcher.cuh"

namespace terrace::shared {

template void attention_backward(KernelLauncher&, const AttentionBackward&);

}  // namespace terrace::shared
