#pragma once

#include <math.h>

#include <algorithm>
#include <cstdint>

#include "base/error.h"
#include "kernels/kernel_table.h"
#include "kernels/shared/block.h"

// RMSNorm and LayerNorm. A row is read once, into registers of the threads that share it: a warp in
// the forward while its registers suffice, a block of threads for wider rows and in the backward.
namespace terrace::shared {

inline constexpr int kWarp = 32;

// Calls body(p, c, count) for the packs of a row that thread t of `threads` has: its p-th pack
// begins at element c. At most Packs, in registers that p numbers.
template <int Packs, int Count, typename Body>
TERRACE_KERNEL void for_each_held_pack(int t, int threads, int width, Body&& body) {
  TERRACE_UNROLL
  for (int p = 0; p < Packs; ++p) {
    const int c = (p * threads + t) * Count;
    if (c < width) body(p, c, width - c < Count ? width - c : Count);
  }
}

template <typename T, int Packs>
struct HeldPacks {
  Words<T> at[Packs];
};

// RowThreads, 32 or all threads of a block, share a row: thread t has the group of rows `group` of
// its block, and is the group's thread `lane`.
template <int RowThreads, typename Block>
struct RowThread {
  static constexpr int kGroups = Block::kThreads / RowThreads;

  int group, lane;

  TERRACE_KERNEL explicit RowThread(int t)
      : group(kGroups == 1 ? 0 : static_cast<int>(static_cast<unsigned>(t) / RowThreads)),
        lane(kGroups == 1 ? t : static_cast<int>(static_cast<unsigned>(t) % RowThreads)) {}
};

// Every thread's value becomes the sum of those of its row.
template <int RowThreads, typename Block, typename Values>
TERRACE_KERNEL void row_sum(Block& block, Values& values) {
  if constexpr (RowThreads == kWarp) {
    block.warp_sum(values);
  } else {
    static_assert(RowThreads == Block::kThreads);
    const auto sum = block.sum(values);
    block.for_each_thread([&](int t) { values[t] = sum; });
  }
}

// RowThreads share a row: 32, or all threads of a block. A warp has two narrow rows at once: their
// loads wait together, and so do their reductions.
template <typename T, bool Centered, int RowThreads, int Packs>
struct NormForwardKernel {
  static constexpr int kPack = kPackOf<T>;
  static constexpr int kRows = RowThreads == kWarp && Packs <= 4 ? 2 : 1;

  const T* x;
  const T* weight;
  const T* bias;  // Centered
  T* y;
  float* mean;  // Centered
  float* rstd;
  std::int64_t R;
  int C;
  float epsilon;
  bool aligned;

  struct Held {
    HeldPacks<T, Packs> row[kRows];
  };
  using OfRows = Floats<kRows>;

  static constexpr int rows_of_block(int threads) { return threads / RowThreads * kRows; }

  template <typename Block>
  TERRACE_KERNEL static std::int64_t first_row(const Block& block, int group) {
    return block.index() * rows_of_block(Block::kThreads) + group * kRows;
  }

  // Past the last, the last row again.
  TERRACE_KERNEL void load_rows(std::int64_t first, int lane, Held& held) const {
    TERRACE_UNROLL
    for (int g = 0; g < kRows; ++g) {
      const std::int64_t r = first + g < R ? first + g : R - 1;
      for_each_held_pack<Packs, kPack>(lane, RowThreads, C, [&](int p, int c, int count) {
        held.row[g].at[p] = load_words(x + r * C + c, count, aligned);
      });
    }
  }

  TERRACE_KERNEL OfRows sums_of(const Held& held, int lane) const {
    OfRows sums = {};
    for_each_held_pack<Packs, kPack>(lane, RowThreads, C, [&](int p, int, int) {
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
    for_each_held_pack<Packs, kPack>(lane, RowThreads, C, [&](int p, int, int count) {
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
    for_each_held_pack<Packs, kPack>(lane, RowThreads, C, [&](int p, int c, int count) {
      const auto w = load_words(weight + c, count, aligned);
      Words<T> b = {};
      if constexpr (Centered) b = load_words(bias + c, count, aligned);
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
        store_words(y + (first + g) * C + c, round_words<T>(out), count, aligned);
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
      const RowThread<RowThreads, Block> thread(t);
      load_rows(first_row(block, thread.group), thread.lane, held[t]);
      centers[t] = {};
      if constexpr (Centered) centers[t] = sums_of(held[t], thread.lane);
    });
    if constexpr (Centered) row_sum<RowThreads>(block, centers);
    block.for_each_thread([&](int t) {
      TERRACE_UNROLL
      for (int g = 0; g < kRows; ++g) centers[t].at[g] /= width;
      squares[t] = squares_of(held[t], RowThread<RowThreads, Block>(t).lane, centers[t]);
    });
    row_sum<RowThreads>(block, squares);
    block.for_each_thread([&](int t) {
      const RowThread<RowThreads, Block> thread(t);
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
template <typename T, bool Centered, int RowThreads, int Packs>
struct NormBackwardKernel {
  static constexpr int kPack = kPackOf<T>;
  static constexpr int kSums = Centered ? 2 : 1;
  static constexpr int kRows =
      RowThreads == kWarp || Packs >= kNormRowsAtOnce ? 1 : kNormRowsAtOnce / Packs;
  static constexpr int kBlocksAtOnce = RowThreads == kWarp ? 4 : 0;  // all of them on a large GPU

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
  bool aligned;

  struct Held {
    HeldPacks<T, Packs> dy[kRows], x[kRows], residual[kRows];
    float center[kRows], scale[kRows];
  };
  // Of each row: the gradient of the normed values along them and, Centered, the sum of it.
  using RowSums = Floats<kSums * kRows>;
  using Shares = Floats<kSums * Packs * kPack>;

  // Past `last`, the last row again.
  TERRACE_KERNEL void load_rows(int lane, std::int64_t first, std::int64_t last, Held& held) const {
    TERRACE_UNROLL
    for (int g = 0; g < kRows; ++g) {
      const std::int64_t r = first + g < last ? first + g : last - 1;
      for_each_held_pack<Packs, kPack>(lane, RowThreads, C, [&](int p, int c, int count) {
        held.dy[g].at[p] = load_words(dy + r * C + c, count, aligned);
        held.x[g].at[p] = load_words(x + r * C + c, count, aligned);
        held.residual[g].at[p] = {};
        if (dresidual != nullptr) {
          held.residual[g].at[p] = load_words(dresidual + r * C + c, count, aligned);
        }
      });
      held.center[g] = Centered ? mean[r] : 0.0F;
      held.scale[g] = rstd[r];
    }
  }

  TERRACE_KERNEL RowSums row_sums(int lane, const Held& held,
                                  const HeldPacks<T, Packs>& weights) const {
    RowSums sums = {};
    for_each_held_pack<Packs, kPack>(lane, RowThreads, C, [&](int p, int, int) {
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
                                 const RowSums& sums, const HeldPacks<T, Packs>& weights,
                                 Shares& shares) const {
    const float width = static_cast<float>(C);
    const float along = sums.at[g * kSums] / width;
    const float common = Centered ? sums.at[g * kSums + kSums - 1] / width : 0.0F;
    const float scale = held.scale[g];
    for_each_held_pack<Packs, kPack>(lane, RowThreads, C, [&](int p, int c, int count) {
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
        if constexpr (Centered) shares.at[(Packs + p) * kPack + i] += gradient;
      }
      store_words(dx + r * C + c, round_words<T>(out), count, aligned);
    });
  }

  template <typename Block>
  TERRACE_KERNEL void operator()(Block& block) const {
    using Thread = RowThread<RowThreads, Block>;
    typename Block::template PerThread<HeldPacks<T, Packs>> weights;
    typename Block::template PerThread<Shares> shares;
    typename Block::template PerThread<Held> held;
    typename Block::template PerThread<RowSums> sums;
    block.for_each_thread([&](int t) {
      shares[t] = {};
      for_each_held_pack<Packs, kPack>(Thread(t).lane, RowThreads, C, [&](int p, int c, int count) {
        weights[t].at[p] = load_words(weight + c, count, aligned);
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
      row_sum<RowThreads>(block, sums);
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
    if (threads == RowThreads) return 0;
    return static_cast<std::size_t>(kSums * packs_of(width)) * sizeof(SharesPack);
  }

 private:
  using SharesPack = Pack<float, kPack>;

  static constexpr int packs_of(int width) { return (width + kPack - 1) / kPack; }

  // The block's shares: those of its warps, added in order.
  template <typename Block, typename PerThreadShares>
  TERRACE_KERNEL void store_shares(Block& block, PerThreadShares& shares) const {
    float* const mine = partial + block.index() * kSums * C;
    if constexpr (RowThread<RowThreads, Block>::kGroups == 1) {
      block.for_each_thread([&](int t) { store_columns(t, shares[t], mine); });
    } else {
      join_warps(block, shares, mine);
    }
  }
  template <typename Block, typename PerThreadShares>
  TERRACE_KERNEL void join_warps(Block& block, PerThreadShares& shares, float* mine) const {
    using Thread = RowThread<RowThreads, Block>;
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
    for_each_held_pack<Packs, kPack>(lane, RowThreads, C, [&](int p, int c, int count) {
      TERRACE_UNROLL
      for (int i = 0; i < kPack; ++i) {
        if (i >= count) break;
        TERRACE_UNROLL
        for (int k = 0; k < kSums; ++k) to[k * C + c + i] = shares.at[(k * Packs + p) * kPack + i];
      }
    });
  }

  TERRACE_KERNEL void join_shares(int lane, bool joins, const Shares& shares,
                                  SharesPack* joined) const {
    for_each_held_pack<Packs, kPack>(lane, RowThreads, C, [&](int p, int c, int) {
      TERRACE_UNROLL
      for (int k = 0; k < kSums; ++k) {
        SharesPack& sums = joined[k * packs_of(C) + c / kPack];
        SharesPack own;
        TERRACE_UNROLL
        for (int i = 0; i < kPack; ++i) own.at[i] = shares.at[(k * Packs + p) * kPack + i];
        if (joins) {
          TERRACE_UNROLL
          for (int i = 0; i < kPack; ++i) own.at[i] = sums.at[i] + own.at[i];
        }
        sums = own;
      }
    });
  }
};

// Column sums of the blocks' shares; each joins its gradient. The threads of a warp have columns
// beside one another, and warp w of a block has shares w, w + kLanes, ..., which it adds in order;
// then these sums are added in order.
struct JoinColumnsKernel {
  const float* partial;  // [blocks, columns]
  std::int64_t blocks, columns, width;
  float* target;  // of the first `width` columns
  float* rest;    // of those after them
  GradientMode mode;

  static constexpr int kLanes = 16;
  static constexpr int kThreads = kLanes * kWarp;
  static constexpr int kAtOnce = 8;  // loads that wait together

  TERRACE_KERNEL float lane_sum(int lane, std::int64_t c) const {
    float sum = 0;
    for (std::int64_t b = lane; b < blocks; b += kAtOnce * kLanes) {
      float values[kAtOnce];
      TERRACE_UNROLL
      for (int i = 0; i < kAtOnce; ++i) {
        const std::int64_t share = b + i * kLanes;
        values[i] = share < blocks ? partial[share * columns + c] : 0.0F;
      }
      TERRACE_UNROLL
      for (int i = 0; i < kAtOnce; ++i) sum += values[i];
    }
    return sum;
  }

  template <typename Block>
  TERRACE_KERNEL void operator()(Block& block) const {
    auto* const sums = reinterpret_cast<float*>(block.shared_memory());
    block.for_each_thread([&](int t) {
      const std::int64_t c = block.index() * kWarp + t % kWarp;
      sums[t] = c < columns ? lane_sum(t / kWarp, c) : 0.0F;
    });
    block.sync();
    block.for_each_thread([&](int t) {
      const std::int64_t c = block.index() * kWarp + t;
      if (t >= kWarp || c >= columns) return;
      float sum = 0;
      for (int lane = 0; lane < kLanes; ++lane) sum += sums[lane * kWarp + t];
      join_gradient(c < width ? target[c] : rest[c - width], sum, mode);
    });
  }
};

template <typename Launcher>
void launch_join_columns(Launcher& launcher, const JoinColumnsKernel& kernel) {
  constexpr int kThreads = JoinColumnsKernel::kThreads;
  launcher.template launch<kThreads>("join_columns", kernel, divide_up(kernel.columns, kWarp),
                                     kThreads * sizeof(float));
}

inline constexpr std::int64_t kNormWidthMax = 32768;

// When a step is planned: a model that cannot be computed is refused.
inline void check_norm_width(std::int64_t width) {
  if (width <= kNormWidthMax) return;
  throw ConfigError("norms on CUDA take rows of at most 32768 elements",
                    "use --device cpu for this model");
}

inline std::size_t norm_backward_workspace(std::int64_t rows, std::int64_t width, int) {
  check_norm_width(width);
  return WorkspaceCutter::padded_bytes(static_cast<std::size_t>(norm_rows(rows).blocks) * 2 *
                                       static_cast<std::size_t>(width) * sizeof(float));
}

// Calls body.operator()<RowThreads, Packs>(): the threads that share a row of C elements, and the
// packs that each holds. Forward: a warp has a row where it can.
template <typename T, bool Forward, typename Body>
void with_row_threads(std::int64_t C, const Body& body) {
  const std::int64_t packs = divide_up(C, kPackOf<T>);
  TERRACE_CHECK_LE(C, kNormWidthMax);
  if constexpr (Forward) {
    if (packs <= 4 * kWarp) return body.template operator()<kWarp, 4>();
    if (packs <= 8 * kWarp) return body.template operator()<kWarp, 8>();
  } else {
    if (packs <= 3 * kWarp) return body.template operator()<kWarp, 3>();
    if (packs <= 128) return body.template operator()<128, 1>();
    if (packs <= 256) return body.template operator()<256, 1>();
  }
  if (packs <= 2 * 256) return body.template operator()<256, 2>();
  if (packs <= 4 * 256) return body.template operator()<256, 4>();
  if (packs <= 4 * 1024) return body.template operator()<1024, 4>();
  body.template operator()<1024, kNormWidthMax / 1024 / kPackOf<T>>();
}

template <typename T, bool Centered, typename Launcher, typename Op>
void launch_norm_forward(Launcher& launcher, const Op& op, TensorView bias, float* mean) {
  const std::int64_t C = op.weight.elements();
  const std::int64_t R = op.rstd.elements();
  TERRACE_CHECK_EQ(op.x.elements(), R * C);
  TERRACE_CHECK_EQ(op.y.elements(), R * C);
  const bool aligned =
      may_load_packs({op.x.data, op.weight.data, bias.data, op.y.data}, C * sizeof(T));
  with_row_threads<T, true>(C, [&]<int RowThreads, int Packs>() {
    constexpr int kThreads = RowThreads == kWarp ? 256 : RowThreads;
    using Kernel = NormForwardKernel<T, Centered, RowThreads, Packs>;
    const Kernel kernel{op.x.template as<T>(),
                        op.weight.template as<T>(),
                        bias.empty() ? nullptr : bias.as<T>(),
                        op.y.template as<T>(),
                        mean,
                        op.rstd.template as<float>(),
                        R,
                        static_cast<int>(C),
                        op.epsilon,
                        aligned};
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
  with_row_threads<T, false>(C, [&]<int RowThreads, int Packs>() {
    constexpr int kThreads = RowThreads == kWarp ? 128 : RowThreads;
    using Kernel = NormBackwardKernel<T, Centered, RowThreads, Packs>;
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
                        static_cast<int>(C),
                        aligned};
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
