#pragma once

#include <math.h>

#include <cstdint>
#include <limits>

#include "kernels/shared/attention_tile.h"

// The gradients of attention, without atomic additions: one kernel for the gradients of queries,
// with a block for 64 queries, and one for those of keys and values, with a block for 64 keys that
// goes through all queries of the heads of its group in order. Both compute the weights again from
// log_sum_exp. dscore = scale weight (dout.v - mean), mean = dout.out of the query.
namespace terrace::shared {

// mean[b, h, i] = dout.out: four threads for a row.
template <typename T>
struct AttentionMeansKernel {
  const T* out;
  const T* dout;
  float* means;
  AttentionPlaces places;

  template <typename Block>
  TERRACE_KERNEL void operator()(Block& block) const {
    const AttentionShape& s = places.shape;
    const std::int64_t rows = s.batch * s.sequence * s.heads;
    typename Block::template PerThread<float> sums;
    block.for_each_thread([&](int t) {
      const std::int64_t row = block.index() * (Block::kThreads / 4) + t / 4;
      float sum = 0;
      for (std::int64_t d = t % 4; row < rows && d < s.head_width; d += 4) {
        const std::int64_t i = row * s.head_width + d;
        sum = ::fmaf(to_float(dout[i]), to_float(out[i]), sum);
      }
      sums[t] = sum;
    });
    block.quad_sum(sums);
    block.for_each_thread([&](int t) {
      const std::int64_t row = block.index() * (Block::kThreads / 4) + t / 4;
      if (t % 4 != 0 || row >= rows) return;
      const std::int64_t h = row % s.heads;
      const std::int64_t position = row / s.heads;
      means[places.row(position / s.sequence, h) + position % s.sequence] = sums[t];
    });
  }
};

// What both kernels of gradients are given.
template <typename T>
struct AttentionGradient {
  const T* qkv;
  const T* dout;
  const float* log_sum_exp;
  const float* means;
  T* dqkv;
  AttentionPlaces places;
  float scale;
  bool aligned;

  // The weight of a score that is not scaled yet.
  TERRACE_KERNEL float weight(float score, float minus_log2_sum_exp) const {
    return power_of_two(::fmaf(score, scale * kLog2e, minus_log2_sum_exp));
  }

  // 16 rows a warp of sums, rounded to a head of dqkv.
  template <int Width, typename Block, typename Sums>
  TERRACE_KERNEL void store(Block& block, Sums& sums, T* head, std::int64_t row) const {
    const HeadRows rows = places.qkv_rows(aligned);
    block.for_each_thread(
        [&](int t) { store_rows<Width>(sums[t], t, head, row, rows, [](int) { return 1.0F; }); });
  }
};

template <typename T, int Width>
struct QueryGradientKernel {
  AttentionGradient<T> op;

  static constexpr int kKeys = kOtherRows<Width>;
  static constexpr int kStride = kTileStride<T, Width>;
  // Keys and values twice: the next come while these are used.
  static constexpr std::size_t kSharedBytes = (2 * kOwnRows + 4 * kKeys) * kTileRowBytes<T, Width>;

  template <typename Block>
  using Scores = typename Block::template PerThread<SumsRow<kKeys / 8>>;
  // Of a thread's two rows.
  struct RowState {
    float minus_log2_sum_exp[2], mean[2];
  };
  template <typename Block>
  using States = typename Block::template PerThread<RowState>;

  // A query past the sequence has no weights.
  TERRACE_KERNEL RowState row_state(int t, std::int64_t row_at, std::int64_t query) const {
    RowState state;
    for (int half = 0; half < 2; ++half) {
      const std::int64_t q = query + t / 32 * 16 + mma_row(t, 2 * half);
      const bool is_there = q < op.places.shape.sequence;
      state.minus_log2_sum_exp[half] =
          is_there ? op.log_sum_exp[row_at + q] * -kLog2e : -std::numeric_limits<float>::infinity();
      state.mean[half] = is_there ? op.means[row_at + q] : 0.0F;
    }
    return state;
  }

  // Scores become the gradients of scores, from dweights = dout.v. `first`: of the block's queries,
  // counted from the tile's first key.
  template <bool Masks, typename Block>
  TERRACE_KERNEL void to_gradients(Block& block, int first, States<Block>& states,
                                   Scores<Block>& scores, Scores<Block>& dweights) const {
    block.for_each_thread([&](int t) {
      TERRACE_UNROLL
      for (int n = 0; n < kKeys / 8; ++n) {
        TERRACE_UNROLL
        for (int i = 0; i < 4; ++i) {
          float& score = scores[t].at[n].at[i];
          float weight = op.weight(score, states[t].minus_log2_sum_exp[i / 2]);
          if (Masks && n * 8 + mma_col(t, i) > first + t / 32 * 16 + mma_row(t, i)) weight = 0.0F;
          score = op.scale * (weight * (dweights[t].at[n].at[i] - states[t].mean[i / 2]));
        }
      }
    });
  }

  template <typename Block, typename Sums>
  TERRACE_KERNEL void add_keys(Block& block, const Tile<T>& queries, int first, const Tile<T>& keys,
                               States<Block>& states, Sums& dquery) const {
    const Tile<T> douts{queries.at + kOwnRows * kStride, kStride};
    const Tile<T> values{keys.at + kKeys * kStride, kStride};
    Scores<Block> scores;
    Scores<Block> dweights;
    block.for_each_thread([&](int t) { scores[t] = dweights[t] = {}; });
    multiply_row<kKeys / 8, Width>(
        block, scores, [&](int k, int t) { return block.a_of_tile(queries, t / 32 * 16, k, t); },
        [&](int k, int n, int t) { return block.b2_of_rows(keys, n, k, t); });
    multiply_row<kKeys / 8, Width>(
        block, dweights, [&](int k, int t) { return block.a_of_tile(douts, t / 32 * 16, k, t); },
        [&](int k, int n, int t) { return block.b2_of_rows(values, n, k, t); });
    if (first < kKeys - 1) {
      to_gradients<true>(block, first, states, scores, dweights);
    } else {
      to_gradients<false>(block, first, states, scores, dweights);
    }
    multiply_row<Width / 8, kKeys>(
        block, dquery,
        [&](int k, int t) { return a_of_sums<T>(scores[t].at[k / 8], scores[t].at[k / 8 + 1]); },
        [&](int k, int n, int t) { return block.b2_of_columns(keys, k, n, t); });
  }

  template <typename Block>
  TERRACE_KERNEL void operator()(Block& block) const {
    const AttentionPlaces& places = op.places;
    auto* const memory = reinterpret_cast<T*>(block.shared_memory());
    const Tile<T> queries{memory, kStride};
    const Tile<T> douts{memory + kOwnRows * kStride, kStride};
    const std::int64_t sequences = places.shape.batch * places.shape.heads;
    const std::int64_t tiles = (places.shape.sequence + kOwnRows - 1) / kOwnRows;
    const std::int64_t b = block.index() % sequences / places.shape.heads;
    const std::int64_t h = block.index() % sequences % places.shape.heads;
    const std::int64_t query = (tiles - 1 - block.index() / sequences) * kOwnRows;
    const HeadRows rows = places.qkv_rows(op.aligned);
    const T* const key_head = op.qkv + places.key(b, places.group(h));
    const T* const value_head = op.qkv + places.value(b, places.group(h));
    // Keys in one of the two places, and their values behind them.
    const auto keys_of = [&](std::int64_t key) {
      const std::int64_t place = key / kKeys % 2;
      return Tile<T>{memory + (2 * kOwnRows + place * 2 * kKeys) * kStride, kStride};
    };
    const auto load = [&](std::int64_t key) {
      const Tile<T> keys = keys_of(key);
      rows.template load<Width, kKeys>(block, key_head, key, keys);
      rows.template load<Width, kKeys>(block, value_head, key,
                                       {keys.at + kKeys * kStride, kStride});
    };
    typename Block::template PerThread<SumsRow<Width / 8>> dquery;
    States<Block> states;
    block.for_each_thread([&](int t) {
      dquery[t] = {};
      states[t] = row_state(t, places.row(b, h), query);
    });
    rows.template load<Width, kOwnRows>(block, op.qkv + places.query(b, h), query, queries);
    places.out_rows(op.aligned)
        .template load<Width, kOwnRows>(block, op.dout + places.out(b, h), query, douts);
    load(0);
    const std::int64_t end = query + kOwnRows;
    for (std::int64_t key = 0; key < end; key += kKeys) {
      block.await_copies();
      block.sync();
      if (key + kKeys < end) load(key + kKeys);
      add_keys(block, queries, static_cast<int>(query - key), keys_of(key), states, dquery);
    }
    op.template store<Width>(block, dquery, op.dqkv + places.query(b, h), query);
  }
};

// Everything is transposed: rows are keys, columns queries.
template <typename T, int Width>
struct KeyGradientKernel {
  AttentionGradient<T> op;

  static constexpr int kQueries = kOtherRows<Width>;
  static constexpr int kStride = kTileStride<T, Width>;
  // Of one tile of queries: they, their douts, and two numbers of each.
  static constexpr std::size_t kTileBytes =
      2 * kQueries * kTileRowBytes<T, Width> + 2 * kQueries * sizeof(float);
  static constexpr std::size_t kSharedBytes =
      2 * kOwnRows * kTileRowBytes<T, Width> + 2 * kTileBytes;

  template <typename Block>
  using Scores = typename Block::template PerThread<SumsRow<kQueries / 8>>;
  template <typename Block>
  using Sums = typename Block::template PerThread<SumsRow<Width / 8>>;

  struct Own {
    Tile<T> keys, values;
  };
  struct Other {
    Tile<T> queries, douts;
    float* log_sum_exp;
    float* means;
  };
  TERRACE_KERNEL Other other_in(std::byte* memory, std::int64_t place) const {
    std::byte* const at = memory + 2 * kOwnRows * kTileRowBytes<T, Width> + place * kTileBytes;
    T* const queries = reinterpret_cast<T*>(at);
    T* const douts = queries + kQueries * kStride;
    auto* const numbers = reinterpret_cast<float*>(douts + kQueries * kStride);
    return {{queries, kStride}, {douts, kStride}, numbers, numbers + kQueries};
  }

  // Scores become weights, and dweights the gradients of scores. `first`: of the block's keys,
  // counted from the tile's first query. Queries past the sequence are zeros, and add zeros.
  template <bool Masks, typename Block>
  TERRACE_KERNEL void to_gradients(Block& block, const Other& other, int first,
                                   Scores<Block>& scores, Scores<Block>& dweights) const {
    block.for_each_thread([&](int t) {
      TERRACE_UNROLL
      for (int n = 0; n < kQueries / 8; ++n) {
        TERRACE_UNROLL
        for (int side = 0; side < 2; ++side) {
          const int column = n * 8 + mma_pair(t) + side;
          const float minus_log2 = other.log_sum_exp[column] * -kLog2e;
          const float mean = other.means[column];
          TERRACE_UNROLL
          for (int i = side; i < 4; i += 2) {
            float& score = scores[t].at[n].at[i];
            float& dweight = dweights[t].at[n].at[i];
            score = op.weight(score, minus_log2);
            if (Masks && first + t / 32 * 16 + mma_row(t, i) > column) score = 0.0F;
            dweight = op.scale * (score * (dweight - mean));
          }
        }
      }
    });
  }

  template <typename Block>
  TERRACE_KERNEL void load_queries(Block& block, const Other& other, std::int64_t b, std::int64_t h,
                                   std::int64_t query) const {
    const AttentionPlaces& places = op.places;
    places.qkv_rows(op.aligned)
        .template load<Width, kQueries>(block, op.qkv + places.query(b, h), query, other.queries);
    places.out_rows(op.aligned)
        .template load<Width, kQueries>(block, op.dout + places.out(b, h), query, other.douts);
    const std::int64_t row_at = places.row(b, h);
    block.for_each_thread([&](int t) {
      if (t >= kQueries) return;
      const int count = query + t < places.shape.sequence ? static_cast<int>(sizeof(float)) : 0;
      const std::int64_t at = row_at + (count != 0 ? query + t : 0);
      block.template copy_async<sizeof(float)>(other.log_sum_exp + t, op.log_sum_exp + at, count);
      block.template copy_async<sizeof(float)>(other.means + t, op.means + at, count);
    });
  }

  template <typename Block>
  TERRACE_KERNEL void add_queries(Block& block, const Own& own, const Other& other, int first,
                                  Sums<Block>& dkey, Sums<Block>& dvalue) const {
    Scores<Block> scores;
    Scores<Block> dweights;
    block.for_each_thread([&](int t) { scores[t] = dweights[t] = {}; });
    multiply_row<kQueries / 8, Width>(
        block, scores, [&](int k, int t) { return block.a_of_tile(own.keys, t / 32 * 16, k, t); },
        [&](int k, int n, int t) { return block.b2_of_rows(other.queries, n, k, t); });
    multiply_row<kQueries / 8, Width>(
        block, dweights,
        [&](int k, int t) { return block.a_of_tile(own.values, t / 32 * 16, k, t); },
        [&](int k, int n, int t) { return block.b2_of_rows(other.douts, n, k, t); });
    if (first > 1 - kOwnRows) {
      to_gradients<true>(block, other, first, scores, dweights);
    } else {
      to_gradients<false>(block, other, first, scores, dweights);
    }
    multiply_row<Width / 8, kQueries>(
        block, dvalue,
        [&](int k, int t) { return a_of_sums<T>(scores[t].at[k / 8], scores[t].at[k / 8 + 1]); },
        [&](int k, int n, int t) { return block.b2_of_columns(other.douts, k, n, t); });
    multiply_row<Width / 8, kQueries>(
        block, dkey,
        [&](int k, int t) {
          return a_of_sums<T>(dweights[t].at[k / 8], dweights[t].at[k / 8 + 1]);
        },
        [&](int k, int n, int t) { return block.b2_of_columns(other.queries, k, n, t); });
  }

  template <typename Block>
  TERRACE_KERNEL void operator()(Block& block) const {
    const AttentionPlaces& places = op.places;
    const AttentionShape& s = places.shape;
    std::byte* const memory = block.shared_memory();
    T* const own_memory = reinterpret_cast<T*>(memory);
    const Own own{{own_memory, kStride}, {own_memory + kOwnRows * kStride, kStride}};
    const std::int64_t sequences = s.batch * s.key_value_heads;
    const std::int64_t b = block.index() % sequences / s.key_value_heads;
    const std::int64_t g = block.index() % sequences % s.key_value_heads;
    const std::int64_t key = block.index() / sequences * kOwnRows;  // the first have most queries
    const std::int64_t heads = s.heads / s.key_value_heads;
    const HeadRows rows = places.qkv_rows(op.aligned);
    rows.template load<Width, kOwnRows>(block, op.qkv + places.key(b, g), key, own.keys);
    rows.template load<Width, kOwnRows>(block, op.qkv + places.value(b, g), key, own.values);
    Sums<Block> dkey;
    Sums<Block> dvalue;
    block.for_each_thread([&](int t) { dkey[t] = dvalue[t] = {}; });
    std::int64_t h = g * heads;
    std::int64_t query = key;
    load_queries(block, other_in(memory, 0), b, h, query);
    for (std::int64_t place = 0; h < (g + 1) * heads; place = 1 - place) {
      const int first = static_cast<int>(key - query);
      query += kQueries;
      if (query >= s.sequence) {
        query = key;
        ++h;
      }
      block.await_copies();
      block.sync();
      if (h < (g + 1) * heads) load_queries(block, other_in(memory, 1 - place), b, h, query);
      add_queries(block, own, other_in(memory, place), first, dkey, dvalue);
    }
    op.template store<Width>(block, dkey, op.dqkv + places.key(b, g), key);
    op.template store<Width>(block, dvalue, op.dqkv + places.value(b, g), key);
  }
};

inline std::size_t attention_backward_workspace(const AttentionBackward& op) {
  const AttentionShape& s = op.shape;
  return WorkspaceCutter::padded_bytes(static_cast<std::size_t>(s.batch * s.heads * s.sequence) *
                                       sizeof(float));
}

template <typename T, typename Launcher>
float* launch_means(Launcher& launcher, const AttentionBackward& op,
                    const AttentionPlaces& places) {
  const std::int64_t rows = op.shape.batch * op.shape.heads * op.shape.sequence;
  WorkspaceCutter workspace(launcher.workspace());
  float* const means = workspace.take<float>(rows);
  const AttentionMeansKernel<T> kernel{op.out.as<T>(), op.dout.as<T>(), means, places};
  launcher.template launch<kAttentionThreads>("attention_backward", kernel,
                                              divide_up(rows, kAttentionThreads / 4));
  return means;
}

template <typename Launcher>
void attention_backward(Launcher& launcher, const AttentionBackward& op) {
  const AttentionPlaces places = attention_places(op.shape, op.qkv, op.out);
  attention_places(op.shape, op.dqkv, op.dout);
  if (launcher.attention(op)) return;
  const AttentionShape& s = op.shape;
  const std::int64_t tiles = divide_up(s.sequence, kOwnRows);
  with_compute_type(op.qkv.dtype, [&]<typename T>(std::type_identity<T>) {
    with_head_width(s.head_width, [&]<int Width>(std::integral_constant<int, Width>) {
      const bool aligned =
          may_load_packs({op.qkv.data, op.dout.data, op.dqkv.data}, s.head_width * sizeof(T));
      float* const means = launch_means<T>(launcher, op, places);
      const AttentionGradient<T> gradient{
          op.qkv.as<T>(), op.dout.as<T>(), op.log_sum_exp.as<float>(),
          means,          op.dqkv.as<T>(), places,
          op.scale,       aligned};
      using ForQueries = QueryGradientKernel<T, Width>;
      using ForKeys = KeyGradientKernel<T, Width>;
      launcher.template launch<kAttentionThreads>("attention_backward", ForQueries{gradient},
                                                  s.batch * s.heads * tiles,
                                                  ForQueries::kSharedBytes);
      launcher.template launch<kAttentionThreads>("attention_backward", ForKeys{gradient},
                                                  s.batch * s.key_value_heads * tiles,
                                                  ForKeys::kSharedBytes);
    });
  });
}

}  // namespace terrace::shared
