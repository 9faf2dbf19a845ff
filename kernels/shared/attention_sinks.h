#pragma once

#include <math.h>

#include <cstdint>

#include "kernels/shared/attention_tile.h"

// The gradient of attention sinks, without atomic additions: a block for each head.
namespace terrace::shared {

// Four threads multiply a query's dout and out, and each adds up its part over every 64th query in
// order; then block.sum() adds the threads' sums.
template <typename T>
struct SinkGradientKernel {
  const T* sinks;
  const T* out;
  const float* log_sum_exp;
  const T* dout;
  float* dsinks;
  AttentionPlaces places;
  GradientMode mode;

  static constexpr int kThreads = 256;

  template <typename Block>
  TERRACE_KERNEL void operator()(Block& block) const {
    const AttentionShape& s = places.shape;
    const std::int64_t h = block.index();
    const std::int64_t rows = s.batch * s.queries;
    const float sink = widened(sinks[h]);
    typename Block::template PerThread<float> sums;
    block.for_each_thread([&](int t) {
      float sum = 0;
      for (std::int64_t row = t / 4; row < rows; row += kThreads / 4) {
        const std::int64_t at = row * places.out_stride() + h * s.head_width;
        float product = 0;
        for (std::int64_t d = t % 4; d < s.head_width; d += 4) {
          product = ::fmaf(widened(dout[at + d]), widened(out[at + d]), product);
        }
        const std::int64_t b = row / s.queries;
        const float weight = ::expf(sink - log_sum_exp[places.row(b, h) + row % s.queries]);
        sum = ::fmaf(-weight, product, sum);
      }
      sums[t] = sum;
    });
    const float total = block.sum(sums);
    block.for_each_thread([&](int t) {
      if (t == 0) join_gradient(dsinks[h], total, mode);
    });
  }
};

template <typename Launcher>
void attention_sinks_backward(Launcher& launcher, const AttentionSinksBackward& op) {
  const AttentionShape& s = op.shape;
  TERRACE_CHECK_EQ(op.sinks.elements(), s.heads);
  TERRACE_CHECK_EQ(op.dsinks.elements(), s.heads);
  TERRACE_CHECK_EQ(op.log_sum_exp.elements(), s.batch * s.heads * s.queries);
  TERRACE_CHECK_EQ(op.out.elements(), s.batch * s.queries * s.heads * s.head_width);
  TERRACE_CHECK_EQ(op.dout.elements(), op.out.elements());
  with_compute_type(op.out.dtype, [&]<typename T>(std::type_identity<T>) {
    using Kernel = SinkGradientKernel<T>;
    const Kernel kernel{op.sinks.as<T>(), op.out.as<T>(),        op.log_sum_exp.as<float>(),
                        op.dout.as<T>(),  op.dsinks.as<float>(), {s},
                        op.mode};
    launcher.template launch<Kernel::kThreads>("attention_sinks_backward", kernel, s.heads);
  });
}

}  // namespace terrace::shared
