#include "kernels/cuda/cudnn_attention.h"

// For builds without cuDNN's headers.
namespace terrace {

struct CudnnAttention::State {};

std::string cudnn_version() { return {}; }

std::size_t cudnn_attention_workspace(const AttentionForward&) { return 0; }
std::size_t cudnn_attention_workspace(const AttentionBackward&) { return 0; }

CudnnAttention::CudnnAttention(AttentionChoice, std::size_t) {}
CudnnAttention::~CudnnAttention() = default;

void CudnnAttention::prepare(const AttentionForward&) {}
void CudnnAttention::prepare(const AttentionBackward&) {}

bool CudnnAttention::enqueue(const AttentionForward&, std::span<std::byte>, NativeStream) {
  return false;
}
bool CudnnAttention::enqueue(const AttentionBackward&, std::span<std::byte>, NativeStream) {
  return false;
}

std::string CudnnAttention::by(const AttentionForward&) {
  return "own kernels: built without cuDNN";
}
std::string CudnnAttention::by(const AttentionBackward&) {
  return "own kernels: built without cuDNN";
}

}  // namespace terrace
