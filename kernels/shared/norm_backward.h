#pragma once

#include <math.h>

#include <cstdint>

#include "kernels/kernel_table.h"
#include "kernels/shared/join_columns.h"
#include "kernels/shared/norm.h"

// The backward of RMSNorm and LayerNorm.
namespace terrace::shared {

// Rows of the backward are shared among at most this many blocks, each with its own sums: some for
// every multiprocessor of a large GPU. The bits depend on it, so it is the same for all.
inline constexpr std::int64_t kNormGradientBlocks = 528;
// A block has a multiple of the rows that it may take at once.
inline constexpr std::int64_t kNormRowsAtOnce = 4;

struct NormRows {
  std::int64_t of_block, blocks;
};
inline NormRows norm_rows(std::int64_t R) {
  const std::int64_t groups = divide_up(R, kNormRowsAtOnce);
  const std::int64_t of_block = divide_up(groups, kNormGradientBlocks) * kNormRowsAtOnce;
  return {of_block, divide_up(R, of_block)};
}

// A thread has the same columns in all its rows, and their sums in registers. Where a block shares
// a row it has some rows at once, so that their loads wait together and one reduction serves them
// all. Where a warp does, warps wait for nobody: of rows narrow enough, a lane's registers suffice
// for the sums, which are added over the block's warps in the end.
template <typename T, bool Centered, typename Row>
struct NormBackwardKernel {
  static constexpr int kPack = kPackOf<T>;
  static constexpr int kSums = Centered ? 2 : 1;
  static constexpr int kRows =
      Row::kThreads == kWarp || Row::kPacks >= kNormRowsAtOnce ? 1 : kNormRowsAtOnce / Row::kPacks;
  static constexpr int kBlocksAtOnce =
      Row::kThreads == kWarp ? 4 : 0;  // all of them on a large GPU

  const T* dy;
  const T* x;
  const T* weight;
  const float* mean;  // Centered
  const float* rstd;
  const T* dresidual;  // may be null, and may be dx
  T* dx;
  float* partial;  // [blocks][kSums][C]: of dweight and dbias
  std::int64_t R, rows_of_block;
  int C;

  struct Held {
    HeldPacks<T, Row::kPacks> dy[kRows], x[kRows], residual[kRows];
    float center[kRows], scale[kRows];
  };
  // Of each row: the gradient of the normed values along them and, Centered, the sum of it.
  using RowSums = Floats<kSums * kRows>;
  using Shares = Floats<kSums * Row::kPacks * kPack>;

  // Past `last`, the last row again.
  TERRACE_KERNEL void load_rows(int lane, std::int64_t first, std::int64_t last, Held& held) const {
    TERRACE_UNROLL
    for (int g = 0; g < kRows; ++g) {
      const std::int64_t r = first + g < last ? first + g : last - 1;
      for_each_held_pack<Row, kPack>(lane, C, [&](int p, int c, int count) {
        held.dy[g].at[p] = load_words(dy + r * C + c, count, Row::kWhole);
        held.x[g].at[p] = load_words(x + r * C + c, count, Row::kWhole);
        held.residual[g].at[p] = {};
        if (dresidual != nullptr) {
          held.residual[g].at[p] = load_words(dresidual + r * C + c, count, Row::kWhole);
        }
      });
      held.center[g] = Centered ? mean[r] : 0.0F;
      held.scale[g] = rstd[r];
    }
  }

  TERRACE_KERNEL RowSums row_sums(int lane, const Held& held,
                                  const HeldPacks<T, Row::kPacks>& weights) const {
    RowSums sums = {};
    for_each_held_pack<Row, kPack>(lane, C, [&](int p, int, int) {
      TERRACE_UNROLL
      for (int i = 0; i < kPack; ++i) {
        const float w = weights.at[p].value(i);
        TERRACE_UNROLL
        for (int g = 0; g < kRows; ++g) {
          const float gradient = held.dy[g].at[p].value(i) * w;
          const float normed = (held.x[g].at[p].value(i) - held.center[g]) * held.scale[g];
          float& along = sums.at[g * kSums];
          along = ::fmaf(gradient, normed, along);
          if constexpr (Centered) sums.at[g * kSums + 1] += gradient;
        }
      }
    });
    return sums;
  }

  // The gradient of row r, the g-th of those held, and what it adds to the weights'.
  TERRACE_KERNEL void finish_row(int lane, std::int64_t r, int g, const Held& held,
                                 const RowSums& sums, const HeldPacks<T, Row::kPacks>& weights,
                                 Shares& shares) const {
    const float width = static_cast<float>(C);
    const float along = sums.at[g * kSums] / width;
    const float common = Centered ? sums.at[g * kSums + kSums - 1] / width : 0.0F;
    const float scale = held.scale[g];
    for_each_held_pack<Row, kPack>(lane, C, [&](int p, int c, int count) {
      Floats<kPack> normed;
      Floats<kPack> out;
      TERRACE_UNROLL
      for (int i = 0; i < kPack; ++i) {
        normed.at[i] = (held.x[g].at[p].value(i) - held.center[g]) * scale;
        const float gradient = held.dy[g].at[p].value(i) * weights.at[p].value(i);
        const float own = scale * (gradient - common - normed.at[i] * along);
        out.at[i] = dresidual == nullptr ? own : held.residual[g].at[p].value(i) + own;
      }
      // The RMS norm's forward multiplied its weight with the rounded value.
      const Words<T> rounded = round_words<T>(normed);
      TERRACE_UNROLL
      for (int i = 0; i < kPack; ++i) {
        const float gradient = held.dy[g].at[p].value(i);
        const float factor = Centered ? normed.at[i] : rounded.value(i);
        float& share = shares.at[p * kPack + i];
        share = ::fmaf(gradient, factor, share);
        if constexpr (Centered) shares.at[(Row::kPacks + p) * kPack + i] += gradient;
      }
      store_words(dx + r * C + c, round_words<T>(out), count, Row::kWhole);
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
    const std::int64_t begin = block.index() * rows_of_block;
    const std::int64_t last = begin + rows_of_block < R ? begin + rows_of_block : R;
    for (std::int64_t next = begin; next < last; next += Thread::kGroups * kRows) {
      block.for_each_thread([&](int t) {
        const Thread thread(t);
        const std::int64_t first = next + thread.group * kRows;
        sums[t] = {};
        if (first >= last) return;  // the last row, which others have, may be written meanwhile
        load_rows(thread.lane, first, last, held[t]);
        sums[t] = row_sums(thread.lane, held[t], weights[t]);
      });
      row_sum<Row::kThreads>(block, sums);
      block.for_each_thread([&](int t) {
        const Thread thread(t);
        const std::int64_t first = next + thread.group * kRows;
        TERRACE_UNROLL
        for (int g = 0; g < kRows; ++g) {
          if (first + g >= last) continue;
          finish_row(thread.lane, first + g, g, held[t], sums[t], weights[t], shares[t]);
        }
      });
    }
    store_shares(block, shares);
  }

  // Of shared memory: for the sums of a block whose threads have several rows.
  static constexpr std::size_t shared_bytes(int threads, int width) {
    if (threads == Row::kThreads) return 0;
    return static_cast<std::size_t>(kSums * packs_of(width)) * sizeof(SharesPack);
  }

 private:
  using SharesPack = Pack<float, kPack>;

  static constexpr int packs_of(int width) { return (width + kPack - 1) / kPack; }

  // The block's shares: those of its warps, added in order.
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
  const bool whole = may_load_packs(
      {op.dy.data, op.x.data, op.weight.data, op.dresidual.data, op.dx.data}, C * sizeof(T));
  with_row_shape<T, false>(C, whole, [&]<typename Row>(Row) {
    constexpr int kThreads = Row::kThreads == kWarp ? 128 : Row::kThreads;
    using Kernel = NormBackwardKernel<T, Centered, Row>;
    const Kernel kernel{op.dy.template as<T>(),
                        op.x.template as<T>(),
                        op.weight.template as<T>(),
                        mean,
                        op.rstd.template as<float>(),
                        op.dresidual.empty() ? nullptr : op.dresidual.template as<T>(),
                        op.dx.template as<T>(),
                        partial,
                        R,
                        rows.of_block,
                        static_cast<int>(C)};
    launcher.template launch<kThreads>(Centered ? "layer_norm_backward" : "rms_norm_backward",
                                       kernel, rows.blocks,
                                       Kernel::shared_bytes(kThreads, static_cast<int>(C)));
  });
  launch_join_columns(launcher, {partial, rows.blocks, kSums * C, C,
                                 op.dweight.template as<float>(), dbias, op.mode});
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
