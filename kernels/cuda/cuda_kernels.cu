#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/kernel_launcher.cuh"
#include "kernels/shared/kernel_functions.h"

namespace terrace {
namespace {

void prepare_attention(const KernelContext& context, const AttentionForward& forward,
                       const AttentionBackward& backward) {
  if (context.attention == nullptr) return;
  context.attention->prepare(forward);
  context.attention->prepare(backward);
}

struct CudaFunctions {
  using Launcher = KernelLauncher;
  static KernelLauncher launcher(const KernelContext& context) { return KernelLauncher(context); }
  static constexpr std::size_t kProductWorkspace = kCudaProductWorkspace;
  template <typename Op>
  static std::size_t attention_workspace(const Op& op) {
    return cudnn_attention_workspace(op);
  }
  static constexpr auto kPrepareAttention = prepare_attention;
};

constexpr KernelTable kCudaKernels = shared::kernel_functions<CudaFunctions>("cuda");

}  // namespace

const KernelTable& cuda_kernels() { return kCudaKernels; }

}  // namespace terrace
