#pragma once

#include <math.h>

#include <cstdint>

#include "kernels/kernel_table.h"
#include "kernels/shared/norm.h"

// The forward of RMSNorm and LayerNorm.
namespace terrace::shared {

// A warp has two narrow rows at once: their loads wait together, and so do their reductions. Here a
// row is a unit: one of the groups of a row, where it has several.
template <typename T, NormKind Kind, typename Row>
struct NormForwardKernel {
  static constexpr bool kCentered = Kind == NormKind::kLayer;
  static constexpr int kPack = kPackOf<T>;
  static constexpr int kRows = Row::kThreads == kWarp && Row::kPacks <= 4 ? 2 : 1;

  UnitRows<const T> x;
  const T* weight;
  const T* bias;  // kLayer; may be null
  UnitRows<T> y;
  float* mean;  // kLayer
  float* rstd;
  std::int64_t R;
  int C;
  float epsilon;
  float weight_offset;  // kWideRms
  PartSums squares;     // for an RMS norm that is divided
  float total_width;    // C, or the divided norm's whole width

  struct Held {
    HeldPacks<T, Row::kPacks> row[kRows];
  };
  using OfRows = Floats<kRows>;

  static constexpr int rows_of_block(int threads) { return threads / Row::kThreads * kRows; }

  template <typename Block>
  TERRACE_KERNEL static std::int64_t first_row(const Block& block, int group) {
    return block.index() * rows_of_block(Block::kThreads) + group * kRows;
  }

  // Loads rows from `first` on; past the last row, it loads the last row again.
  TERRACE_KERNEL void load_rows(std::int64_t first, int lane, Held& held) const {
    TERRACE_UNROLL
    for (int g = 0; g < kRows; ++g) {
      const T* const from = x.at(first + g < R ? first + g : R - 1);
      for_each_held_pack<Row, kPack>(lane, C, [&](int p, int c, int count) {
        held.row[g].at[p] = load_words(from + c, count, Row::kWhole);
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
      if (kCentered && bias != nullptr) b = load_words(bias + c, count, Row::kWhole);
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
          const float factor = norm_factor<Kind>(w.value(i), weight_offset);
          if constexpr (kCentered) {
            out.at[i] = factor * normed.at[i] + b.value(i);
          } else {
            out.at[i] = factor * (Kind == NormKind::kRms ? rounded.value(i) : normed.at[i]);
          }
        }
        store_words(y.at(first + g) + c, round_words<T>(out), count, Row::kWhole);
      }
    });
  }

  // Returns the sums of all parts for rows from `first` on; past the last row, for the last row
  // again.
  TERRACE_KERNEL OfRows sums_of_parts(std::int64_t first) const {
    OfRows sums;
    TERRACE_UNROLL
    for (int g = 0; g < kRows; ++g) sums.at[g] = squares.of_row(first + g < R ? first + g : R - 1);
    return sums;
  }

  template <typename Block>
  TERRACE_KERNEL void operator()(Block& block) const {
    typename Block::template PerThread<Held> held;
    typename Block::template PerThread<OfRows> centers;
    typename Block::template PerThread<OfRows> sums;
    const bool divided = !kCentered && squares.sums != nullptr;
    const float width = static_cast<float>(C);
    block.for_each_thread([&](int t) {
      const RowThread<Row::kThreads, Block> thread(t);
      load_rows(first_row(block, thread.group), thread.lane, held[t]);
      centers[t] = {};
      if constexpr (kCentered) centers[t] = sums_of(held[t], thread.lane);
    });
    if constexpr (kCentered) row_sum<Row::kThreads>(block, centers);
    block.for_each_thread([&](int t) {
      const RowThread<Row::kThreads, Block> thread(t);
      if (divided) {
        sums[t] = sums_of_parts(first_row(block, thread.group));
        return;
      }
      TERRACE_UNROLL
      for (int g = 0; g < kRows; ++g) centers[t].at[g] /= width;
      sums[t] = squares_of(held[t], thread.lane, centers[t]);
    });
    if (!divided) row_sum<Row::kThreads>(block, sums);
    block.for_each_thread([&](int t) {
      const RowThread<Row::kThreads, Block> thread(t);
      const std::int64_t first = first_row(block, thread.group);
      OfRows scales;
      TERRACE_UNROLL
      for (int g = 0; g < kRows; ++g) {
        scales.at[g] = 1.0F / ::sqrtf(sums[t].at[g] / total_width + epsilon);
        if (thread.lane != 0 || first + g >= R) continue;
        rstd[first + g] = scales.at[g];
        if (kCentered) mean[first + g] = centers[t].at[g];
      }
      store_rows(held[t], first, thread.lane, centers[t], scales);
    });
  }
};

// `bias` and `mean` belong to a layer norm.
template <typename T, NormKind Kind, typename Launcher>
void launch_norm_forward(Launcher& launcher, const RmsNormForward& op, const TensorView& bias,
                         float* mean) {
  const std::int64_t C = op.weight.elements();
  const std::int64_t R = checked_units(op.x, C);
  check_same_rows(op.y, op.x);
  TERRACE_CHECK_EQ(op.rstd.elements(), R);
  const PartSums squares = part_sums(op.squares, op.x, C, op.total_width);
  const bool whole =
      units_are_whole<T>({op.x, op.y}, op.weight, C) && may_load_packs({bias.data}, 0);
  with_row_shape<T, true>(C, whole, [&]<typename Row>(Row) {
    constexpr int kThreads = Row::kThreads == kWarp ? 256 : Row::kThreads;
    using Kernel = NormForwardKernel<T, Kind, Row>;
    const Kernel kernel{unit_rows<const T>(op.x, C),
                        op.weight.as<T>(),
                        bias.empty() ? nullptr : bias.as<T>(),
                        unit_rows<T>(op.y, C),
                        mean,
                        op.rstd.as<float>(),
                        R,
                        static_cast<int>(C),
                        op.epsilon,
                        weight_offset(op.form),
                        squares,
                        static_cast<float>(squares.parts > 0 ? op.total_width : C)};
    constexpr bool kCentered = Kernel::kCentered;
    launcher.template launch<kThreads>(kCentered ? "layer_norm_forward" : "rms_norm_forward",
                                       kernel, divide_up(R, Kernel::rows_of_block(kThreads)));
  });
}

template <typename Launcher>
void rms_norm_forward(Launcher& launcher, const RmsNormForward& op) {
  with_compute_type(op.x.dtype, [&]<typename T>(std::type_identity<T>) {
    with_rms_kind(op.form, [&]<NormKind Kind>(std::integral_constant<NormKind, Kind>) {
      launch_norm_forward<T, Kind>(launcher, op, {}, nullptr);
    });
  });
}

template <typename Launcher>
void layer_norm_forward(Launcher& launcher, const LayerNormForward& op) {
  const std::int64_t R = op.rstd.elements();
  const std::int64_t C = op.weight.elements();
  TERRACE_CHECK_EQ(op.x.elements(), R * C);
  TERRACE_CHECK_EQ(op.y.elements(), R * C);
  RmsNormForward rows;
  rows.x = {op.x.data, op.x.dtype, R, C, C};
  rows.weight = op.weight;
  rows.y = {op.y.data, op.y.dtype, R, C, C};
  rows.rstd = op.rstd;
  rows.epsilon = op.epsilon;
  with_compute_type(op.x.dtype, [&]<typename T>(std::type_identity<T>) {
    launch_norm_forward<T, NormKind::kLayer>(launcher, rows, op.bias, op.mean.as<float>());
  });
}

}  // namespace terrace::shared
