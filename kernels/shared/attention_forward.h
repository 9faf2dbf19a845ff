#pragma once

#include <math.h>

#include <cstdint>
#include <limits>

#include "kernels/shared/attention_tile.h"

// Causal attention, a block of threads for 64 queries of a head. Keys and values come in tiles; the
// maximum and the sum of a row's exponentials are carried along and what is summed so far is scaled
// when the maximum grows (Dao, "FlashAttention-2", 2023). Products are of the compute type with
// fp32 sums; weights are rounded to the compute type.
namespace terrace::shared {

template <typename T, int Width>
struct AttentionForwardKernel {
  const T* qkv;
  T* out;
  float* log_sum_exp;
  AttentionPlaces places;
  float scale;
  bool aligned;

  static constexpr float kLeast = -std::numeric_limits<float>::infinity();
  static constexpr int kKeys = kOtherRows<Width>;
  // Keys and values twice: the next come while these are used.
  static constexpr std::size_t kSharedBytes = (kOwnRows + 4 * kKeys) * kTileRowBytes<T, Width>;

  template <typename Block>
  using Scores = typename Block::template PerThread<SumsRow<kKeys / 8>>;
  template <typename Block>
  using Mixed = typename Block::template PerThread<SumsRow<Width / 8>>;
  // Of a thread's two rows.
  struct RowState {
    float max[2], sum[2];
  };
  template <typename Block>
  using States = typename Block::template PerThread<RowState>;

  struct Place {
    std::int64_t b, h, query;  // the first of the block's queries
  };
  // Blocks with the longest rows begin first.
  TERRACE_KERNEL Place place(std::int64_t index) const {
    const std::int64_t sequences = places.shape.batch * places.shape.heads;
    const std::int64_t tiles = (places.shape.sequence + kOwnRows - 1) / kOwnRows;
    const std::int64_t at = index % sequences;
    return {at / places.shape.heads, at % places.shape.heads,
            (tiles - 1 - index / sequences) * kOwnRows};
  }

  // Of the tile that begins at `key`: keys past the query.
  template <typename Block>
  TERRACE_KERNEL void mask(Block& block, const Place& at, std::int64_t key,
                           Scores<Block>& scores) const {
    const int first = static_cast<int>(at.query - key);
    if (first >= kKeys - 1) return;
    block.for_each_thread([&](int t) {
      TERRACE_UNROLL
      for (int n = 0; n < kKeys / 8; ++n) {
        TERRACE_UNROLL
        for (int i = 0; i < 4; ++i) {
          if (n * 8 + mma_col(t, i) > first + t / 32 * 16 + mma_row(t, i)) {
            scores[t].at[n].at[i] = kLeast;
          }
        }
      }
    });
  }

  // Scores become weights; `mixed`, the sums so far, follow a maximum that grew.
  template <typename Block>
  TERRACE_KERNEL void to_weights(Block& block, Scores<Block>& scores, Mixed<Block>& mixed,
                                 States<Block>& states) const {
    typename Block::template PerThread<float> max[2];
    block.for_each_thread([&](int t) {
      max[0][t] = kLeast;
      max[1][t] = kLeast;
      TERRACE_UNROLL
      for (int n = 0; n < kKeys / 8; ++n) {
        TERRACE_UNROLL
        for (int i = 0; i < 4; ++i) max[i / 2][t] = ::fmaxf(max[i / 2][t], scores[t].at[n].at[i]);
      }
    });
    block.quad_max(max[0]);
    block.quad_max(max[1]);
    const float exponent = scale * kLog2e;
    block.for_each_thread([&](int t) {
      RowState& state = states[t];
      TERRACE_UNROLL
      for (int row = 0; row < 2; ++row) {
        const float most = ::fmaxf(state.max[row], max[row][t]);
        const float minus_most = -most * exponent;
        const float shrink = power_of_two(::fmaf(state.max[row], exponent, minus_most));
        state.max[row] = most;
        float sum = state.sum[row] * shrink;
        TERRACE_UNROLL
        for (int n = 0; n < kKeys / 8; ++n) {
          TERRACE_UNROLL
          for (int i = 2 * row; i < 2 * row + 2; ++i) {
            float& score = scores[t].at[n].at[i];
            score = power_of_two(::fmaf(score, exponent, minus_most));
            sum += score;
          }
        }
        state.sum[row] = sum;
        TERRACE_UNROLL
        for (int n = 0; n < Width / 8; ++n) {
          mixed[t].at[n].at[2 * row] *= shrink;
          mixed[t].at[n].at[2 * row + 1] *= shrink;
        }
      }
    });
  }

  template <typename Block>
  TERRACE_KERNEL void store(Block& block, const Place& at, Mixed<Block>& mixed,
                            States<Block>& states) const {
    typename Block::template PerThread<float> sums[2];
    block.for_each_thread([&](int t) {
      sums[0][t] = states[t].sum[0];
      sums[1][t] = states[t].sum[1];
    });
    block.quad_sum(sums[0]);
    block.quad_sum(sums[1]);
    T* const head = out + places.out(at.b, at.h);
    const HeadRows rows = places.out_rows(aligned);
    block.for_each_thread([&](int t) {
      store_rows<Width>(mixed[t], t, head, at.query, rows,
                        [&](int half) { return 1.0F / sums[half][t]; });
      TERRACE_UNROLL
      for (int half = 0; half < 2; ++half) {
        const std::int64_t query = at.query + t / 32 * 16 + mma_row(t, 2 * half);
        if (mma_pair(t) != 0 || query >= rows.T) continue;
        log_sum_exp[places.row(at.b, at.h) + query] =
            states[t].max[half] * scale + ::logf(sums[half][t]);
      }
    });
  }

  template <typename Block>
  TERRACE_KERNEL void operator()(Block& block) const {
    auto* const memory = reinterpret_cast<T*>(block.shared_memory());
    constexpr int kStride = kTileStride<T, Width>;
    const Tile<T> queries{memory, kStride};
    const Place at = place(block.index());
    const HeadRows rows = places.qkv_rows(aligned);
    const T* const key_head = qkv + places.key(at.b, places.group(at.h));
    const T* const value_head = qkv + places.value(at.b, places.group(at.h));
    // Keys of one of the two places, and their values behind them.
    const auto keys_of = [&](std::int64_t key) {
      const std::int64_t place = key / kKeys % 2;
      return Tile<T>{memory + (kOwnRows + place * 2 * kKeys) * kStride, kStride};
    };
    const auto values_of = [&](std::int64_t key) {
      return Tile<T>{keys_of(key).at + kKeys * kStride, kStride};
    };
    const auto load = [&](std::int64_t key) {
      rows.template load<Width, kKeys>(block, key_head, key, keys_of(key));
      rows.template load<Width, kKeys>(block, value_head, key, values_of(key));
    };
    States<Block> states;
    Mixed<Block> mixed;
    block.for_each_thread([&](int t) {
      states[t] = {{kLeast, kLeast}, {0.0F, 0.0F}};
      mixed[t] = {};
    });
    rows.template load<Width, kOwnRows>(block, qkv + places.query(at.b, at.h), at.query, queries);
    load(0);
    const std::int64_t end = at.query + kOwnRows;
    for (std::int64_t key = 0; key < end; key += kKeys) {
      block.await_copies();
      block.sync();
      if (key + kKeys < end) load(key + kKeys);
      const Tile<T> keys = keys_of(key);
      const Tile<T> values = values_of(key);
      Scores<Block> scores;
      block.for_each_thread([&](int t) { scores[t] = {}; });
      multiply_row<kKeys / 8, Width>(
          block, scores, [&](int k, int t) { return block.a_of_tile(queries, t / 32 * 16, k, t); },
          [&](int k, int n, int t) { return block.b2_of_rows(keys, n, k, t); });
      mask(block, at, key, scores);
      to_weights(block, scores, mixed, states);
      multiply_row<Width / 8, kKeys>(
          block, mixed,
          [&](int k, int t) { return a_of_sums<T>(scores[t].at[k / 8], scores[t].at[k / 8 + 1]); },
          [&](int k, int n, int t) { return block.b2_of_columns(values, k, n, t); });
    }
    store(block, at, mixed, states);
  }
};

template <typename Launcher>
void attention_forward(Launcher& launcher, const AttentionForward& op) {
  const AttentionPlaces places = attention_places(op.shape, op.qkv, op.out);
  if (launcher.attention(op)) return;
  const AttentionShape& s = op.shape;
  with_compute_type(op.qkv.dtype, [&]<typename T>(std::type_identity<T>) {
    with_head_width(s.head_width, [&]<int Width>(std::integral_constant<int, Width>) {
      using Kernel = AttentionForwardKernel<T, Width>;
      const bool aligned = may_load_packs({op.qkv.data, op.out.data}, s.head_width * sizeof(T));
      const Kernel kernel{op.qkv.as<T>(), op.out.as<T>(), op.log_sum_exp.as<float>(),
                          places,         op.scale,       aligned};
      launcher.template launch<kAttentionThreads>(
          "attention_forward", kernel, s.batch * s.heads * divide_up(s.sequence, kOwnRows),
          Kernel::kSharedBytes);
    });
  });
}

}  // namespace terrace::shared
