#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "kernels/cuda/attention_choice.h"
#include "kernels/kernel_table.h"
#include "memory/device.h"

namespace terrace {

// Returns the library that can be loaded, like "cuDNN 9.19.0". Empty where there is none, and in a
// build without its headers.
std::string cudnn_version();

// Return the bytes that the ops' workspace functions ask for on behalf of cuDNN; 0 for types and
// heads that it is never used for.
std::size_t cudnn_attention_workspace(const AttentionForward& op);
std::size_t cudnn_attention_workspace(const AttentionBackward& op);

// cuDNN's attention on one GPU, and the plan for each shape so far. One thread at a time may use
// it.
//
// The library is loaded by name when it is first needed; where it is missing there are no plans. A
// plan is made once for each combination of shape, type, scale, window, strides and direction that
// cudnn_refusal() does not refuse, when it is prepared or its first op comes, on the GPU that is
// current in the thread. It has an algorithm whose bits are always the same, and uses at most the
// bytes of cudnn_attention_workspace(). It is kept as long as this object lives. All views have to
// begin on a boundary of 16 bytes, as buffers of an arena do.
class CudnnAttention {
 public:
  // `score_bytes` is passed to attention_part(); tests give less than the workspace is sized for.
  explicit CudnnAttention(AttentionChoice choice, std::size_t score_bytes = kCudnnScoreBytes);
  ~CudnnAttention();
  CudnnAttention(const CudnnAttention&) = delete;
  CudnnAttention& operator=(const CudnnAttention&) = delete;

  // Makes the plan for such ops; data pointers of views are not followed. Throws DeviceError.
  void prepare(const AttentionForward& op);
  void prepare(const AttentionBackward& op);

  // Enqueues the op on the GPU that is current in this thread. Returns false, with nothing
  // enqueued, where there is no plan for it or a view is not on a boundary. Throws DeviceError.
  bool enqueue(const AttentionForward& op, std::span<std::byte> workspace, NativeStream stream);
  bool enqueue(const AttentionBackward& op, std::span<std::byte> workspace, NativeStream stream);

  // Return who computes the op if its views are on boundaries: "cuDNN 9.19.0", or "own kernels: "
  // and the reason.
  std::string by(const AttentionForward& op);
  std::string by(const AttentionBackward& op);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace terrace
