#pragma once

#include "kernels/cuda/cuda_launcher.cuh"
#include "kernels/cuda/cuda_products.h"
#include "kernels/cuda/cudnn_attention.h"
#include "kernels/kernel_context.h"
#include "kernels/shared/attention_backward.h"
#include "kernels/shared/attention_forward.h"
#include "kernels/shared/tile_product.h"

namespace terrace {

// A CudaLauncher with the libraries' matrix products and attention. Ops take a context's workspace
// from the front, and products take it from the back.
class KernelLauncher final : public CudaLauncher {
 public:
  explicit KernelLauncher(const KernelContext& context)
      : CudaLauncher(static_cast<cudaStream_t>(context.stream.handle), context.workspace),
        products_(context.products),
        attention_(context.attention) {
    TERRACE_CHECK(products_ != nullptr);
  }

  void product(const shared::Product& product) {
    if (product.rows == 0 || product.cols == 0) return;
    if (products_->enqueue(product, workspace(), NativeStream{stream()})) return;
    shared::tile_product(*this, product);
  }

  template <typename Op>
  bool attention(const Op& op) {
    return attention_ != nullptr && attention_->enqueue(op, workspace(), NativeStream{stream()});
  }

 private:
  CudaProducts* const products_;
  CudnnAttention* const attention_;
};

// Compiled in files of their own: they take nvcc longest.
namespace shared {
extern template void attention_forward(KernelLauncher&, const AttentionForward&);
extern template void attention_backward(KernelLauncher&, const AttentionBackward&);
}  // namespace shared

}  // namespace terrace
