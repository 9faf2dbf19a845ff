#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "kernels/cuda/attention_choice.h"
#include "kernels/kernel_table.h"
#include "memory/device.h"

namespace terrace {

// "cuDNN 9.19.0": the library that can be loaded. Empty where there is none, and in a build without
// its headers.
std::string cudnn_version();

// What the ops' workspace functions ask for on behalf of cuDNN. 0 for types and heads that it is
// never asked for.
std::size_t cudnn_attention_workspace(const AttentionForward& op);
std::size_t cudnn_attention_workspace(const AttentionBackward& op);

// cuDNN's attention on one GPU, and the plan for each shape so far. One thread at a time.
//
// The library is loaded by name when it is first wanted; where it is missing there are no plans. A
// plan is made once for each shape, type, scale, window, strides and direction, when it is prepared
// or the first op comes, on the GPU that is current in the thread, where cudnn_refusal() has
// nothing against it, with an algorithm whose bits are always the same, and at most the bytes of
// cudnn_attention_workspace(). It is kept as long as this lives. All views have to begin on a
// boundary of 16 bytes, as buffers of an arena do.
class CudnnAttention {
 public:
  // `score_bytes`: of attention_part(); for tests, less than what the workspace is made for.
  explicit CudnnAttention(AttentionChoice choice, std::size_t score_bytes = kCudnnScoreBytes);
  ~CudnnAttention();
  CudnnAttention(const CudnnAttention&) = delete;
  CudnnAttention& operator=(const CudnnAttention&) = delete;

  // Makes the plan for such ops; views are not looked at. Throws DeviceError.
  void prepare(const AttentionForward& op);
  void prepare(const AttentionBackward& op);

  // Enqueues the op on the GPU that is current in this thread. False where there is no plan for it,
  // or a view is not on a boundary: nothing was enqueued. Throws DeviceError.
  bool enqueue(const AttentionForward& op, std::span<std::byte> workspace, NativeStream stream);
  bool enqueue(const AttentionBackward& op, std::span<std::byte> workspace, NativeStream stream);

  // "cuDNN 9.19.0", or "own kernels: " and why, of views on boundaries.
  std::string by(const AttentionForward& op);
  std::string by(const AttentionBackward& op);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace terrace
