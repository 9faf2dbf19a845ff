#pragma once

#include <math.h>

#include <cstdint>

#include "kernels/kernel_table.h"
#include "kernels/shared/norm.h"

// The forward of RMSNorm and LayerNorm.
namespace terrace::shared {

// A warp has two narrow rows at once: their loads wait together, and so do their reductions.
template <typename T, bool Centered, typename Row>
struct NormForwardKernel {
  static constexpr int kPack = kPackOf<T>;
  static constexpr int kRows = Row::kThreads == kWarp && Row::kPacks <= 4 ? 2 : 1;

  const T* x;
  const T* weight;
  const T* bias;  // Centered
  T* y;
  float* mean;  // Centered
  float* rstd;
  std::int64_t R;
  int C;
  float epsilon;

  struct Held {
    HeldPacks<T, Row::kPacks> row[kRows];
  };
  using OfRows = Floats<kRows>;

  static constexpr int rows_of_block(int threads) { return threads / Row::kThreads * kRows; }

  template <typename Block>
  TERRACE_KERNEL static std::int64_t first_row(const Block& block, int group) {
    return block.index() * rows_of_block(Block::kThreads) + group * kRows;
  }

  // Past the last, the last row again.
  TERRACE_KERNEL void load_rows(std::int64_t first, int lane, Held& held) const {
    TERRACE_UNROLL
    for (int g = 0; g < kRows; ++g) {
      const std::int64_t r = first + g < R ? first + g : R - 1;
      for_each_held_pack<Row, kPack>(lane, C, [&](int p, int c, int count) {
        held.row[g].at[p] = load_words(x + r * C + c, count, Row::kWhole);
      });
    }
  }

  TERRACE_KERNEL OfRows sums_of(const Held& held, int lane) const {
    OfRows sums = {};
    for_each_held_pack<Row, kPack>(lane, C, [&](int p, int, int) {
      TERRACE_UNROLL
      for (int g = 0; g < kRows; ++g) {
        TERRACE_UNROLL
        for (int i = 0; i < kPack; ++i) sums.at[g] += held.row[g].at[p].value(i);
      }
    });
    return sums;
  }

  TERRACE_KERNEL OfRows squares_of(const Held& held, int lane, const OfRows& centers) const {
    OfRows sums = {};
    for_each_held_pack<Row, kPack>(lane, C, [&](int p, int, int count) {
      TERRACE_UNROLL
      for (int g = 0; g < kRows; ++g) {
        TERRACE_UNROLL
        for (int i = 0; i < kPack; ++i) {
          const float value = i < count ? held.row[g].at[p].value(i) - centers.at[g] : 0.0F;
          sums.at[g] = ::fmaf(value, value, sums.at[g]);
        }
      }
    });
    return sums;
  }

  TERRACE_KERNEL void store_rows(const Held& held, std::int64_t first, int lane,
                                 const OfRows& centers, const OfRows& scales) const {
    for_each_held_pack<Row, kPack>(lane, C, [&](int p, int c, int count) {
      const auto w = load_words(weight + c, count, Row::kWhole);
      Words<T> b = {};
      if constexpr (Centered) b = load_words(bias + c, count, Row::kWhole);
      TERRACE_UNROLL
      for (int g = 0; g < kRows; ++g) {
        if (first + g >= R) continue;
        Floats<kPack> normed;
        TERRACE_UNROLL
        for (int i = 0; i < kPack; ++i) {
          normed.at[i] = (held.row[g].at[p].value(i) - centers.at[g]) * scales.at[g];
        }
        const Words<T> rounded = round_words<T>(normed);
        Floats<kPack> out;
        TERRACE_UNROLL
        for (int i = 0; i < kPack; ++i) {
          if constexpr (Centered) {
            out.at[i] = w.value(i) * normed.at[i] + b.value(i);
          } else {
            out.at[i] = w.value(i) * rounded.value(i);
          }
        }
        store_words(y + (first + g) * C + c, round_words<T>(out), count, Row::kWhole);
      }
    });
  }

  template <typename Block>
  TERRACE_KERNEL void operator()(Block& block) const {
    typename Block::template PerThread<Held> held;
    typename Block::template PerThread<OfRows> centers;
    typename Block::template PerThread<OfRows> squares;
    const float width = static_cast<float>(C);
    block.for_each_thread([&](int t) {
      const RowThread<Row::kThreads, Block> thread(t);
      load_rows(first_row(block, thread.group), thread.lane, held[t]);
      centers[t] = {};
      if constexpr (Centered) centers[t] = sums_of(held[t], thread.lane);
    });
    if constexpr (Centered) row_sum<Row::kThreads>(block, centers);
    block.for_each_thread([&](int t) {
      TERRACE_UNROLL
      for (int g = 0; g < kRows; ++g) centers[t].at[g] /= width;
      squares[t] = squares_of(held[t], RowThread<Row::kThreads, Block>(t).lane, centers[t]);
    });
    row_sum<Row::kThreads>(block, squares);
    block.for_each_thread([&](int t) {
      const RowThread<Row::kThreads, Block> thread(t);
      const std::int64_t first = first_row(block, thread.group);
      OfRows scales;
      TERRACE_UNROLL
      for (int g = 0; g < kRows; ++g) {
        scales.at[g] = 1.0F / ::sqrtf(squares[t].at[g] / width + epsilon);
        if (thread.lane != 0 || first + g >= R) continue;
        rstd[first + g] = scales.at[g];
        if (Centered) mean[first + g] = centers[t].at[g];
      }
      store_rows(held[t], first, thread.lane, centers[t], scales);
    });
  }
};

template <typename T, bool Centered, typename Launcher, typename Op>
void launch_norm_forward(Launcher& launcher, const Op& op, TensorView bias, float* mean) {
  const std::int64_t C = op.weight.elements();
  const std::int64_t R = op.rstd.elements();
  TERRACE_CHECK_EQ(op.x.elements(), R * C);
  TERRACE_CHECK_EQ(op.y.elements(), R * C);
  const bool whole =
      may_load_packs({op.x.data, op.weight.data, bias.data, op.y.data}, C * sizeof(T));
  with_row_shape<T, true>(C, whole, [&]<typename Row>(Row) {
    constexpr int kThreads = Row::kThreads == kWarp ? 256 : Row::kThreads;
    using Kernel = NormForwardKernel<T, Centered, Row>;
    const Kernel kernel{op.x.template as<T>(),
                        op.weight.template as<T>(),
                        bias.empty() ? nullptr : bias.as<T>(),
                        op.y.template as<T>(),
                        mean,
                        op.rstd.template as<float>(),
                        R,
                        static_cast<int>(C),
                        op.epsilon};
    launcher.template launch<kThreads>(Centered ? "layer_norm_forward" : "rms_norm_forward", kernel,
                                       divide_up(R, Kernel::rows_of_block(kThreads)));
  });
}

template <typename Launcher>
void rms_norm_forward(Launcher& launcher, const RmsNormForward& op) {
  with_compute_type(op.x.dtype, [&]<typename T>(std::type_identity<T>) {
    launch_norm_forward<T, false>(launcher, op, {}, nullptr);
  });
}

template <typename Launcher>
void layer_norm_forward(Launcher& launcher, const LayerNormForward& op) {
  with_compute_type(op.x.dtype, [&]<typename T>(std::type_identity<T>) {
    launch_norm_forward<T, true>(launcher, op, op.bias, op.mean.as<float>());
  });
}

}  // namespace terrace::shared
