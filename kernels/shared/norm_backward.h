#pragma once

#include <math.h>

#include <cstdint>

#include "kernels/kernel_table.h"
#include "kernels/shared/join_columns.h"
#include "kernels/shared/norm.h"

// The backward of RMSNorm and LayerNorm.
namespace terrace::shared {

// The most blocks that share the rows of the backward, each with its own sums: several for every
// multiprocessor of a large GPU. The bits depend on this number, so it is the same for all GPUs.
inline constexpr std::int64_t kNormGradientBlocks = 528;
// A block has a multiple of this number of rows, the most that it takes at once.
inline constexpr std::int64_t kNormRowsAtOnce = 4;

struct NormRows {
  std::int64_t of_block, blocks;
};
inline NormRows norm_rows(std::int64_t R) {
  const std::int64_t groups = divide_up(R, kNormRowsAtOnce);
  const std::int64_t of_block = divide_up(groups, kNormGradientBlocks) * kNormRowsAtOnce;
  return {of_block, divide_up(R, of_block)};
}

// A thread has the same columns in all its rows, and keeps their sums in registers. Where a block
// shares a row, it takes several rows at once, so that their loads wait together and one reduction
// serves them all. Where a warp has a row to itself, warps do not wait for each other: such rows
// are narrow enough for a lane's registers to hold the sums, which are added over the block's warps
// in the end.
template <typename T, NormKind Kind, typename Row>
struct NormBackwardKernel {
  static constexpr bool kCentered = Kind == NormKind::kLayer;
  static constexpr int kPack = kPackOf<T>;
  static constexpr int kSums = kCentered ? 2 : 1;
  static constexpr int kRows =
      Row::kThreads == kWarp || Row::kPacks >= kNormRowsAtOnce ? 1 : kNormRowsAtOnce / Row::kPacks;
  static constexpr int kBlocksAtOnce =
      Row::kThreads == kWarp ? 4 : 0;  // all of them on a large GPU

  UnitRows<const T> dy;
  UnitRows<const T> x;
  const T* weight;
  const float* mean;  // kLayer
  const float* rstd;
  UnitRows<const T> dresidual;  // may be null, and may be dx; so may dy
  UnitRows<T> dx;
  float* partial;  // [blocks][kSums][C]: of dweight and dbias
  std::int64_t R, rows_of_block;
  int C;
  float weight_offset;  // kWideRms
  PartSums alongs;      // for an RMS norm that is divided
  float total_width;    // C, or the divided norm's whole width

  struct Held {
    HeldPacks<T, Row::kPacks> dy[kRows], x[kRows], residual[kRows];
    float center[kRows], scale[kRows];
  };
  // For each row, the dot product of the normed values and their gradient and, for kLayer, the
  // gradient's sum.
  using RowSums = Floats<kSums * kRows>;
  using Shares = Floats<kSums * Row::kPacks * kPack>;

  // Loads rows from `first` on; past `last`, it loads the last row again.
  TERRACE_KERNEL void load_rows(int lane, std::int64_t first, std::int64_t last, Held& held) const {
    TERRACE_UNROLL
    for (int g = 0; g < kRows; ++g) {
      const std::int64_t r = first + g < last ? first + g : last - 1;
      const T* const dy_row = dy.at(r);
      const T* const x_row = x.at(r);
      const T* const residual_row = dresidual.data == nullptr ? nullptr : dresidual.at(r);
      for_each_held_pack<Row, kPack>(lane, C, [&](int p, int c, int count) {
        held.dy[g].at[p] = load_words(dy_row + c, count, Row::kWhole);
        held.x[g].at[p] = load_words(x_row + c, count, Row::kWhole);
        held.residual[g].at[p] = {};
        if (residual_row != nullptr) {
          held.residual[g].at[p] = load_words(residual_row + c, count, Row::kWhole);
        }
      });
      held.center[g] = kCentered ? mean[r] : 0.0F;
      held.scale[g] = rstd[r];
    }
  }

  TERRACE_KERNEL RowSums row_sums(int lane, const Held& held,
                                  const HeldPacks<T, Row::kPacks>& weights) const {
    RowSums sums = {};
    for_each_held_pack<Row, kPack>(lane, C, [&](int p, int, int) {
      TERRACE_UNROLL
      for (int i = 0; i < kPack; ++i) {
        const float w = norm_factor<Kind>(weights.at[p].value(i), weight_offset);
        TERRACE_UNROLL
        for (int g = 0; g < kRows; ++g) {
          const float gradient = held.dy[g].at[p].value(i) * w;
          const float normed = (held.x[g].at[p].value(i) - held.center[g]) * held.scale[g];
          float& along = sums.at[g * kSums];
          along = ::fmaf(gradient, normed, along);
          if constexpr (kCentered) sums.at[g * kSums + 1] += gradient;
        }
      }
    });
    return sums;
  }

  // Returns the sums of all parts for rows from `first` on; past `last`, for the last row again.
  TERRACE_KERNEL RowSums sums_of_parts(std::int64_t first, std::int64_t last) const {
    RowSums sums = {};
    TERRACE_UNROLL
    for (int g = 0; g < kRows; ++g) {
      sums.at[g * kSums] = alongs.of_row(first + g < last ? first + g : last - 1);
    }
    return sums;
  }

  // A lane's part of row r, the g-th of those held.
  struct HeldRow {
    int lane;
    std::int64_t r;
    int g;
  };
  // Computes the gradient of a row, and adds the row's share to the weights' gradients.
  TERRACE_KERNEL void finish_row(const HeldRow& row, const Held& held, const RowSums& sums,
                                 const HeldPacks<T, Row::kPacks>& weights, Shares& shares) const {
    const auto [lane, r, g] = row;
    const float along = sums.at[g * kSums] / total_width;
    const float common = kCentered ? sums.at[g * kSums + kSums - 1] / total_width : 0.0F;
    const float scale = held.scale[g];
    T* const dx_row = dx.at(r);
    for_each_held_pack<Row, kPack>(lane, C, [&](int p, int c, int count) {
      Floats<kPack> normed;
      Floats<kPack> out;
      TERRACE_UNROLL
      for (int i = 0; i < kPack; ++i) {
        normed.at[i] = (held.x[g].at[p].value(i) - held.center[g]) * scale;
        const float w = norm_factor<Kind>(weights.at[p].value(i), weight_offset);
        const float gradient = held.dy[g].at[p].value(i) * w;
        const float own = scale * (gradient - common - normed.at[i] * along);
        out.at[i] = dresidual.data == nullptr ? own : held.residual[g].at[p].value(i) + own;
      }
      // The forward of kRms multiplied its weight with the rounded value.
      const Words<T> rounded = round_words<T>(normed);
      TERRACE_UNROLL
      for (int i = 0; i < kPack; ++i) {
        const float gradient = held.dy[g].at[p].value(i);
        const float factor = Kind == NormKind::kRms ? rounded.value(i) : normed.at[i];
        float& share = shares.at[p * kPack + i];
        share = ::fmaf(gradient, factor, share);
        if constexpr (kCentered) shares.at[(Row::kPacks + p) * kPack + i] += gradient;
      }
      store_words(dx_row + c, round_words<T>(out), count, Row::kWhole);
    });
  }

  template <typename Block>
  TERRACE_KERNEL void operator()(Block& block) const {
    using Thread = RowThread<Row::kThreads, Block>;
    typename Block::template PerThread<HeldPacks<T, Row::kPacks>> weights;
    typename Block::template PerThread<Shares> shares;
    typename Block::template PerThread<Held> held;
    typename Block::template PerThread<RowSums> sums;
    block.for_each_thread([&](int t) {
      shares[t] = {};
      for_each_held_pack<Row, kPack>(Thread(t).lane, C, [&](int p, int c, int count) {
        weights[t].at[p] = load_words(weight + c, count, Row::kWhole);
      });
    });
    const bool divided = !kCentered && alongs.sums != nullptr;
    const std::int64_t begin = block.index() * rows_of_block;
    const std::int64_t last = begin + rows_of_block < R ? begin + rows_of_block : R;
    for (std::int64_t next = begin; next < last; next += Thread::kGroups * kRows) {
      block.for_each_thread([&](int t) {
        const Thread thread(t);
        const std::int64_t first = next + thread.group * kRows;
        sums[t] = {};
        if (first >= last) return;  // others have the last row and may be writing it
        load_rows(thread.lane, first, last, held[t]);
        sums[t] = divided ? sums_of_parts(first, last) : row_sums(thread.lane, held[t], weights[t]);
      });
      if (!divided) row_sum<Row::kThreads>(block, sums);
      block.for_each_thread([&](int t) {
        const Thread thread(t);
        const std::int64_t first = next + thread.group * kRows;
        TERRACE_UNROLL
        for (int g = 0; g < kRows; ++g) {
          if (first + g >= last) continue;
          finish_row({thread.lane, first + g, g}, held[t], sums[t], weights[t], shares[t]);
        }
      });
    }
    store_shares(block, shares);
  }

  // Returns the bytes of shared memory for the sums of a block that has several rows at once.
  static constexpr std::size_t shared_bytes(int threads, int width) {
    if (threads == Row::kThreads) return 0;
    return static_cast<std::size_t>(kSums * packs_of(width)) * sizeof(SharesPack);
  }

 private:
  using SharesPack = Pack<float, kPack>;

  static constexpr int packs_of(int width) { return (width + kPack - 1) / kPack; }

  // Stores the block's shares: the shares of its warps, added in order.
  template <typename Block, typename PerThreadShares>
  TERRACE_KERNEL void store_shares(Block& block, PerThreadShares& shares) const {
    float* const mine = partial + block.index() * kSums * C;
    if constexpr (RowThread<Row::kThreads, Block>::kGroups == 1) {
      block.for_each_thread([&](int t) { store_columns(t, shares[t], mine); });
    } else {
      join_warps(block, shares, mine);
    }
  }
  template <typename Block, typename PerThreadShares>
  TERRACE_KERNEL void join_warps(Block& block, PerThreadShares& shares, float* mine) const {
    using Thread = RowThread<Row::kThreads, Block>;
    auto* const joined = reinterpret_cast<SharesPack*>(block.shared_memory());
    for (int group = 0; group < Thread::kGroups; ++group) {
      block.for_each_thread([&](int t) {
        const Thread thread(t);
        if (thread.group == group) join_shares(thread.lane, group > 0, shares[t], joined);
      });
      block.sync();
    }
    block.for_each_thread([&](int t) {
      for (int k = 0; k < kSums; ++k) {
        for (int c = t; c < C; c += Block::kThreads) {
          mine[k * C + c] = joined[k * packs_of(C) + c / kPack].at[c % kPack];
        }
      }
    });
  }

  TERRACE_KERNEL void store_columns(int lane, const Shares& shares, float* to) const {
    for_each_held_pack<Row, kPack>(lane, C, [&](int p, int c, int count) {
      TERRACE_UNROLL
      for (int i = 0; i < kPack; ++i) {
        if (i >= count) break;
        TERRACE_UNROLL
        for (int k = 0; k < kSums; ++k)
          to[k * C + c + i] = shares.at[(k * Row::kPacks + p) * kPack + i];
      }
    });
  }

  TERRACE_KERNEL void join_shares(int lane, bool joins, const Shares& shares,
                                  SharesPack* joined) const {
    for_each_held_pack<Row, kPack>(lane, C, [&](int p, int c, int) {
      TERRACE_UNROLL
      for (int k = 0; k < kSums; ++k) {
        SharesPack& sums = joined[k * packs_of(C) + c / kPack];
        SharesPack own;
        TERRACE_UNROLL
        for (int i = 0; i < kPack; ++i) own.at[i] = shares.at[(k * Row::kPacks + p) * kPack + i];
        if (joins) {
          TERRACE_UNROLL
          for (int i = 0; i < kPack; ++i) own.at[i] = sums.at[i] + own.at[i];
        }
        sums = own;
      }
    });
  }
};

inline std::size_t norm_backward_workspace(std::int64_t rows, std::int64_t width, int) {
  check_norm_width(width);
  return WorkspaceCutter::padded_bytes(static_cast<std::size_t>(norm_rows(rows).blocks) * 2 *
                                       static_cast<std::size_t>(width) * sizeof(float));
}

// The statistics and the gradient that a layer norm has in addition to an RMS norm's.
struct LayerNormParts {
  const float* mean = nullptr;
  float* dbias = nullptr;  // may be null
};

template <typename T, NormKind Kind, typename Launcher>
void launch_norm_backward(Launcher& launcher, const RmsNormBackward& op,
                          const LayerNormParts& layer) {
  const std::int64_t C = op.weight.elements();
  const std::int64_t R = checked_units(op.x, C);
  check_same_rows(op.dy, op.x);
  check_same_rows(op.dx, op.x);
  TERRACE_CHECK_EQ(op.rstd.elements(), R);
  constexpr std::int64_t kSums = Kind == NormKind::kLayer ? 2 : 1;
  const PartSums alongs = part_sums(op.along, op.x, C, op.total_width);
  const NormRows rows = norm_rows(R);
  WorkspaceCutter workspace(launcher.workspace());
  float* const partial = workspace.take<float>(rows.blocks * kSums * C);
  const bool whole = units_are_whole<T>({op.dy, op.x, op.dresidual, op.dx}, op.weight, C);
  with_row_shape<T, false>(C, whole, [&]<typename Row>(Row) {
    constexpr int kThreads = Row::kThreads == kWarp ? 128 : Row::kThreads;
    using Kernel = NormBackwardKernel<T, Kind, Row>;
    const Kernel kernel{unit_rows<const T>(op.dy, C),
                        unit_rows<const T>(op.x, C),
                        op.weight.as<T>(),
                        layer.mean,
                        op.rstd.as<float>(),
                        unit_rows<const T>(op.dresidual, C),
                        unit_rows<T>(op.dx, C),
                        partial,
                        R,
                        rows.of_block,
                        static_cast<int>(C),
                        weight_offset(op.form),
                        alongs,
                        static_cast<float>(alongs.parts > 0 ? op.total_width : C)};
    launcher.template launch<kThreads>(
        Kernel::kCentered ? "layer_norm_backward" : "rms_norm_backward", kernel, rows.blocks,
        Kernel::shared_bytes(kThreads, static_cast<int>(C)));
  });
  // Without a bias, the sums that follow the weight's are not used.
  launch_join_columns(launcher,
                      {partial, rows.blocks, kSums * C, layer.dbias == nullptr ? C : kSums * C, C,
                       op.dweight.as<float>(), layer.dbias, op.mode});
}

template <typename Launcher>
void rms_norm_backward(Launcher& launcher, const RmsNormBackward& op) {
  with_compute_type(op.x.dtype, [&]<typename T>(std::type_identity<T>) {
    with_rms_kind(op.form, [&]<NormKind Kind>(std::integral_constant<NormKind, Kind>) {
      launch_norm_backward<T, Kind>(launcher, op, {});
    });
  });
}

template <typename Launcher>
void layer_norm_backward(Launcher& launcher, const LayerNormBackward& op) {
  const std::int64_t R = op.rstd.elements();
  const std::int64_t C = op.weight.elements();
  const auto rows_of = [&](const TensorView& tensor) {
    TERRACE_CHECK_EQ(tensor.elements(), R * C);
    return StridedRows{tensor.data, tensor.dtype, R, C, C};
  };
  RmsNormBackward rows;
  rows.dy = rows_of(op.dy);
  rows.x = rows_of(op.x);
  rows.weight = op.weight;
  rows.rstd = op.rstd;
  if (!op.dresidual.empty()) rows.dresidual = rows_of(op.dresidual);
  rows.dx = rows_of(op.dx);
  rows.dweight = op.dweight;
  rows.mode = op.mode;
  const LayerNormParts layer = {op.mean.as<float>(),
                                op.dbias.empty() ? nullptr : op.dbias.as<float>()};
  with_compute_type(op.x.dtype, [&]<typename T>(std::type_identity<T>) {
    launch_norm_backward<T, NormKind::kLayer>(launcher, rows, layer);
  });
}

}  // namespace terrace::shared
