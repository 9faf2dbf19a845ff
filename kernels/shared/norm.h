#pragma once

#include <math.h>

#include <algorithm>
#include <cstdint>

#include "kernels/kernel_table.h"
#include "kernels/shared/block.h"

// RMSNorm and LayerNorm: a block of threads for a row, or in the backward for some rows, whose
// shares of the weight gradients stay in shared memory until the block's last row.
namespace terrace::shared {

inline constexpr int kNormThreads = 256;

template <typename T, bool Centered>
struct NormForwardKernel {
  const T* x;
  const T* weight;
  const T* bias;  // Centered
  T* y;
  float* mean;  // Centered
  float* rstd;
  std::int64_t C;
  float epsilon;
  bool aligned;

  template <typename Block>
  TERRACE_KERNEL float mean_of(Block& block, const T* row) const {
    typename Block::template PerThread<float> sums;
    block.for_each_thread([&](int t) {
      float sum = 0;
      for_each_pack<kPackOf<T>>(t, Block::kThreads, C, [&](std::int64_t c, std::int64_t count) {
        const auto pack = load_pack(row + c, count, aligned);
        TERRACE_UNROLL
        for (int i = 0; i < kPackOf<T>; ++i) sum += to_float(pack.at[i]);
      });
      sums[t] = sum;
    });
    return block.sum(sums) / static_cast<float>(C);
  }

  template <typename Block>
  TERRACE_KERNEL float squares_of(Block& block, const T* row, float center) const {
    typename Block::template PerThread<float> sums;
    block.for_each_thread([&](int t) {
      float sum = 0;
      for_each_pack<kPackOf<T>>(t, Block::kThreads, C, [&](std::int64_t c, std::int64_t count) {
        const auto pack = load_pack(row + c, count, aligned);
        TERRACE_UNROLL
        for (int i = 0; i < kPackOf<T>; ++i) {
          const float value = i < count ? to_float(pack.at[i]) - center : 0.0F;
          sum = ::fmaf(value, value, sum);
        }
      });
      sums[t] = sum;
    });
    return block.sum(sums) / static_cast<float>(C);
  }

  template <typename Block>
  TERRACE_KERNEL void operator()(Block& block) const {
    const std::int64_t r = block.index();
    const T* const row = x + r * C;
    const float center = Centered ? mean_of(block, row) : 0.0F;
    const float scale = 1.0F / ::sqrtf(squares_of(block, row, center) + epsilon);
    block.for_each_thread([&](int t) {
      if (t == 0) rstd[r] = scale;
      if (Centered && t == 0) mean[r] = center;
      for_each_pack<kPackOf<T>>(t, Block::kThreads, C, [&](std::int64_t c, std::int64_t count) {
        const auto in = load_pack(row + c, count, aligned);
        const auto w = load_pack(weight + c, count, aligned);
        Pack<T> b = {};
        if constexpr (Centered) b = load_pack(bias + c, count, aligned);
        Pack<T> out;
        TERRACE_UNROLL
        for (int i = 0; i < kPackOf<T>; ++i) {
          const float normed = (to_float(in.at[i]) - center) * scale;
          if constexpr (Centered) {
            out.at[i] = round_to<T>(to_float(w.at[i]) * normed + to_float(b.at[i]));
          } else {
            out.at[i] = round_to<T>(to_float(w.at[i]) * to_float(round_to<T>(normed)));
          }
        }
        store_pack(y + r * C + c, out, count, aligned);
      });
    });
  }
};

// Rows of the backward are shared among at most this many blocks, each with its own sums.
inline constexpr std::int64_t kNormGradientBlocks = 256;

struct NormRows {
  std::int64_t of_block, blocks;
};
inline NormRows norm_rows(std::int64_t R) {
  const std::int64_t of_block = divide_up(R, kNormGradientBlocks);
  return {of_block, divide_up(R, of_block)};
}

template <typename T, bool Centered>
struct NormBackwardKernel {
  const T* dy;
  const T* x;
  const T* weight;
  const float* mean;  // Centered
  const float* rstd;
  const T* dresidual;  // may be null, and may be dx
  T* dx;
  float* partial;  // [blocks][Centered ? 2 : 1][C]: of dweight and dbias
  std::int64_t R, C, rows_of_block;
  bool aligned;

  // Where the sums of the pack at c lie in shared memory: neighbouring threads in neighbouring
  // words. A thread has the same columns in every row, so nobody else touches them.
  TERRACE_KERNEL std::int64_t slot(std::int64_t c, int i) const {
    return i * divide_up_columns() + c / kPackOf<T>;
  }
  TERRACE_KERNEL std::int64_t divide_up_columns() const {
    return (C + kPackOf<T> - 1) / kPackOf<T>;
  }
  TERRACE_KERNEL std::int64_t slots() const { return divide_up_columns() * kPackOf<T>; }

  // The means over a row of the gradient of the normed values, and of it along them.
  struct RowMeans {
    float common, along;
  };

  template <typename Block>
  TERRACE_KERNEL RowMeans row_means(Block& block, std::int64_t r) const {
    const float center = Centered ? mean[r] : 0.0F;
    const float scale = rstd[r];
    typename Block::template PerThread<float> common_sums;
    typename Block::template PerThread<float> along_sums;
    block.for_each_thread([&](int t) {
      float common = 0;
      float along = 0;
      for_each_pack<kPackOf<T>>(t, Block::kThreads, C, [&](std::int64_t c, std::int64_t count) {
        const auto gradient = load_pack(dy + r * C + c, count, aligned);
        const auto in = load_pack(x + r * C + c, count, aligned);
        const auto w = load_pack(weight + c, count, aligned);
        TERRACE_UNROLL
        for (int i = 0; i < kPackOf<T>; ++i) {
          const float g = to_float(gradient.at[i]) * to_float(w.at[i]);
          common += g;
          along = ::fmaf(g, (to_float(in.at[i]) - center) * scale, along);
        }
      });
      common_sums[t] = common;
      along_sums[t] = along;
    });
    const float width = static_cast<float>(C);
    const float common = Centered ? block.sum(common_sums) / width : 0.0F;
    return {common, block.sum(along_sums) / width};
  }

  template <typename Block>
  TERRACE_KERNEL void row_gradients(Block& block, std::int64_t r, float* sums) const {
    const RowMeans means = row_means(block, r);
    const float center = Centered ? mean[r] : 0.0F;
    const float scale = rstd[r];
    block.for_each_thread([&](int t) {
      for_each_pack<kPackOf<T>>(t, Block::kThreads, C, [&](std::int64_t c, std::int64_t count) {
        const auto gradient = load_pack(dy + r * C + c, count, aligned);
        const auto in = load_pack(x + r * C + c, count, aligned);
        const auto w = load_pack(weight + c, count, aligned);
        Pack<T> residual = {};
        if (dresidual != nullptr) residual = load_pack(dresidual + r * C + c, count, aligned);
        Pack<T> out;
        TERRACE_UNROLL
        for (int i = 0; i < kPackOf<T>; ++i) {
          const float normed = (to_float(in.at[i]) - center) * scale;
          const float g = to_float(gradient.at[i]);
          const float own = scale * (g * to_float(w.at[i]) - means.common - normed * means.along);
          out.at[i] = round_to<T>(dresidual == nullptr ? own : to_float(residual.at[i]) + own);
          // The RMS norm's forward multiplied its weight with the rounded value.
          const float factor = Centered ? normed : to_float(round_to<T>(normed));
          float& sum = sums[slot(c, i)];
          sum = ::fmaf(g, factor, sum);
          if constexpr (Centered) sums[slots() + slot(c, i)] += g;
        }
        store_pack(dx + r * C + c, out, count, aligned);
      });
    });
  }

  template <typename Block>
  TERRACE_KERNEL void operator()(Block& block) const {
    constexpr int kSums = Centered ? 2 : 1;
    auto* const sums = reinterpret_cast<float*>(block.shared_memory());
    const auto for_each_sum = [&](auto&& body) {
      block.for_each_thread([&](int t) {
        for_each_pack<kPackOf<T>>(t, Block::kThreads, C, [&](std::int64_t c, std::int64_t count) {
          for (int i = 0; i < kPackOf<T>; ++i) {
            for (int k = 0; k < kSums; ++k)
              body(k, c + i, sums[k * slots() + slot(c, i)], i < count);
          }
        });
      });
    };
    for_each_sum([](int, std::int64_t, float& sum, bool) { sum = 0; });
    const std::int64_t first = block.index() * rows_of_block;
    const std::int64_t last = first + rows_of_block < R ? first + rows_of_block : R;
    for (std::int64_t r = first; r < last; ++r) row_gradients(block, r, sums);
    float* const mine = partial + block.index() * kSums * C;
    for_each_sum([&](int k, std::int64_t c, float& sum, bool is_there) {
      if (is_there) mine[k * C + c] = sum;
    });
  }
};

// Column sums of the blocks' shares, in block order; each joins its gradient.
struct JoinColumnsKernel {
  const float* partial;  // [blocks, stride], columns from 0
  std::int64_t blocks, stride, width;
  float* target;
  GradientMode mode;

  template <typename Block>
  TERRACE_KERNEL void operator()(Block& block) const {
    block.for_each_thread([&](int t) {
      const std::int64_t c = block.index() * Block::kThreads + t;
      if (c >= width) return;
      float sum = 0;
      for (std::int64_t b = 0; b < blocks; ++b) sum += partial[b * stride + c];
      join_gradient(target[c], sum, mode);
    });
  }
};

template <typename Launcher>
void launch_join_columns(Launcher& launcher, const JoinColumnsKernel& kernel) {
  constexpr int kThreads = 128;
  launcher.template launch<kThreads>("join_columns", kernel, divide_up(kernel.width, kThreads));
}

inline std::size_t norm_backward_workspace(std::int64_t rows, std::int64_t width, int) {
  return WorkspaceCutter::padded_bytes(static_cast<std::size_t>(norm_rows(rows).blocks) * 2 *
                                       static_cast<std::size_t>(width) * sizeof(float));
}

template <typename Launcher>
void rms_norm_forward(Launcher& launcher, const RmsNormForward& op) {
  const std::int64_t C = op.weight.elements();
  const std::int64_t R = op.rstd.elements();
  TERRACE_CHECK_EQ(op.x.elements(), R * C);
  TERRACE_CHECK_EQ(op.y.elements(), R * C);
  with_compute_type(op.x.dtype, [&]<typename T>(std::type_identity<T>) {
    const bool aligned = may_load_packs({op.x.data, op.weight.data, op.y.data}, C * sizeof(T));
    const NormForwardKernel<T, false> kernel{
        op.x.as<T>(), op.weight.as<T>(),   nullptr, op.y.as<T>(),
        nullptr,      op.rstd.as<float>(), C,       op.epsilon,
        aligned};
    launcher.template launch<kNormThreads>("rms_norm_forward", kernel, R);
  });
}

template <typename Launcher>
void layer_norm_forward(Launcher& launcher, const LayerNormForward& op) {
  const std::int64_t C = op.weight.elements();
  const std::int64_t R = op.rstd.elements();
  TERRACE_CHECK_EQ(op.x.elements(), R * C);
  TERRACE_CHECK_EQ(op.y.elements(), R * C);
  with_compute_type(op.x.dtype, [&]<typename T>(std::type_identity<T>) {
    const bool aligned =
        may_load_packs({op.x.data, op.weight.data, op.bias.data, op.y.data}, C * sizeof(T));
    const NormForwardKernel<T, true> kernel{op.x.as<T>(),
                                            op.weight.as<T>(),
                                            op.bias.as<T>(),
                                            op.y.as<T>(),
                                            op.mean.as<float>(),
                                            op.rstd.as<float>(),
                                            C,
                                            op.epsilon,
                                            aligned};
    launcher.template launch<kNormThreads>("layer_norm_forward", kernel, R);
  });
}

template <typename T, bool Centered, typename Launcher, typename Op>
void launch_norm_backward(Launcher& launcher, const Op& op, const float* mean, float* dbias) {
  const std::int64_t C = op.weight.elements();
  const std::int64_t R = op.rstd.elements();
  TERRACE_CHECK_EQ(op.x.elements(), R * C);
  TERRACE_CHECK_EQ(op.dy.elements(), R * C);
  TERRACE_CHECK_EQ(op.dx.elements(), R * C);
  constexpr std::int64_t kSums = Centered ? 2 : 1;
  const NormRows rows = norm_rows(R);
  WorkspaceCutter workspace(launcher.workspace());
  float* const partial = workspace.take<float>(rows.blocks * kSums * C);
  const bool aligned = may_load_packs(
      {op.dy.data, op.x.data, op.weight.data, op.dresidual.data, op.dx.data}, C * sizeof(T));
  const NormBackwardKernel<T, Centered> kernel{
      op.dy.template as<T>(),
      op.x.template as<T>(),
      op.weight.template as<T>(),
      mean,
      op.rstd.template as<float>(),
      op.dresidual.empty() ? nullptr : op.dresidual.template as<T>(),
      op.dx.template as<T>(),
      partial,
      R,
      C,
      rows.of_block,
      aligned};
  const std::int64_t slots = divide_up(C, kPackOf<T>) * kPackOf<T>;
  launcher.template launch<kNormThreads>(Centered ? "layer_norm_backward" : "rms_norm_backward",
                                         kernel, rows.blocks,
                                         static_cast<std::size_t>(kSums * slots) * sizeof(float));
  launch_join_columns(
      launcher, {partial, rows.blocks, kSums * C, C, op.dweight.template as<float>(), op.mode});
  if constexpr (Centered) {
    launch_join_columns(launcher, {partial + C, rows.blocks, kSums * C, C, dbias, op.mode});
  }
}

template <typename Launcher>
void rms_norm_backward(Launcher& launcher, const RmsNormBackward& op) {
  with_compute_type(op.x.dtype, [&]<typename T>(std::type_identity<T>) {
    launch_norm_backward<T, false>(launcher, op, nullptr, nullptr);
  });
}

template <typename Launcher>
void layer_norm_backward(Launcher& launcher, const LayerNormBackward& op) {
  with_compute_type(op.x.dtype, [&]<typename T>(std::type_identity<T>) {
    launch_norm_backward<T, true>(launcher, op, op.mean.as<float>(), op.dbias.as<float>());
  });
}

}  // namespace terrace::shared
