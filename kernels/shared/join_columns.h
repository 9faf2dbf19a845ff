#pragma once

#include <cstdint>

#include "kernels/kernel_table.h"
#include "kernels/shared/block.h"

namespace terrace::shared {

// The kernel that sums the columns of the blocks' shares and adds each sum to its gradient. The
// threads of a warp have neighbouring columns. Warp w of a block has shares w, w + kLanes, ...,
// which it adds in order; then these sums are added in order.
struct JoinColumnsKernel {
  const float* partial;  // [blocks, stride]
  std::int64_t blocks, stride, columns, width;
  float* target;  // of the first `width` columns
  float* rest;    // of those after them
  GradientMode mode;

  static constexpr int kColumns = 32;  // of a block
  static constexpr int kLanes = 16;
  static constexpr int kThreads = kLanes * kColumns;
  static constexpr int kAtOnce = 16;  // loads that wait together

  // If each load has a bounds check beside it, nvcc makes one load wait for the other, so whole
  // batches have no check.
  TERRACE_KERNEL float lane_sum(int lane, std::int64_t c) const {
    const float* const own = partial + c;
    float sum = 0;
    std::int64_t b = lane;
    for (; b + (kAtOnce - 1) * kLanes < blocks; b += kAtOnce * kLanes) {
      float values[kAtOnce];
      TERRACE_UNROLL
      for (int i = 0; i < kAtOnce; ++i) values[i] = own[(b + i * kLanes) * stride];
      TERRACE_UNROLL
      for (int i = 0; i < kAtOnce; ++i) sum += values[i];
    }
    for (; b < blocks; b += kLanes) sum += own[b * stride];
    return sum;
  }

  template <typename Block>
  TERRACE_KERNEL void operator()(Block& block) const {
    auto* const sums = reinterpret_cast<float*>(block.shared_memory());
    block.for_each_thread([&](int t) {
      const std::int64_t c = block.index() * kColumns + t % kColumns;
      sums[t] = c < columns ? lane_sum(t / kColumns, c) : 0.0F;
    });
    block.sync();
    block.for_each_thread([&](int t) {
      const std::int64_t c = block.index() * kColumns + t;
      if (t >= kColumns || c >= columns) return;
      float sum = 0;
      for (int lane = 0; lane < kLanes; ++lane) sum += sums[lane * kColumns + t];
      join_gradient(c < width ? target[c] : rest[c - width], sum, mode);
    });
  }
};

template <typename Launcher>
void launch_join_columns(Launcher& launcher, const JoinColumnsKernel& kernel) {
  constexpr int kThreads = JoinColumnsKernel::kThreads;
  launcher.template launch<kThreads>("join_columns", kernel,
                                     divide_up(kernel.columns, JoinColumnsKernel::kColumns),
                                     kThreads * sizeof(float));
}

}  // namespace terrace::shared
