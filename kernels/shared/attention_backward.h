#pragma once

#include <math.h>

#include <cstdint>

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
  TERRACE_KERNEL float weight(float score, float row_log_sum_exp) const {
    return ::exp2f(::fmaf(score, scale, -row_log_sum_exp) * kLog2e);
  }

  // 16 rows a warp of sums, rounded to a head of dqkv.
  template <int Width, typename Block, typename Sums>
  TERRACE_KERNEL void store(Block& block, Sums& sums, T* head, std::int64_t row) const {
    const AttentionShape& s = places.shape;
    block.for_each_thread([&](int t) {
      TERRACE_UNROLL
      for (int n = 0; n < Width / 8; ++n) {
        TERRACE_UNROLL
        for (int i = 0; i < 4; ++i) {
          const std::int64_t r = row + t / 32 * 16 + mma_row(t, i);
          const int d = n * 8 + mma_col(t, i);
          if (r >= s.sequence || d >= s.head_width) continue;
          head[r * places.qkv_width + d] = round_to<T>(sums[t].at[n].at[i]);
        }
      }
    });
  }
};

template <typename T, int Width>
struct QueryGradientKernel {
  AttentionGradient<T> op;

  static constexpr int kKeys = kOtherRows<Width>;
  static constexpr int kStride = kTileStride<T, Width>;
  static constexpr std::size_t kSharedBytes = 2 * (kOwnRows + kKeys) * kTileRowBytes<T, Width>;

  template <typename Block>
  using Scores = typename Block::template PerThread<SumsRow<kKeys / 8>>;

  // Scores become the gradients of scores, from dweights = dout.v.
  template <typename Block>
  TERRACE_KERNEL void to_gradients(Block& block, std::int64_t row_at, std::int64_t query,
                                   std::int64_t key, Scores<Block>& scores,
                                   Scores<Block>& dweights) const {
    const std::int64_t sequence = op.places.shape.sequence;
    block.for_each_thread([&](int t) {
      TERRACE_UNROLL
      for (int i = 0; i < 4; ++i) {
        const std::int64_t q = query + t / 32 * 16 + mma_row(t, i);
        const bool is_there = q < sequence;
        const float log_sum_exp = is_there ? op.log_sum_exp[row_at + q] : 0.0F;
        const float mean = is_there ? op.means[row_at + q] : 0.0F;
        TERRACE_UNROLL
        for (int n = 0; n < kKeys / 8; ++n) {
          float& score = scores[t].at[n].at[i];
          const bool counts = is_there && key + n * 8 + mma_col(t, i) <= q;
          const float weight = counts ? op.weight(score, log_sum_exp) : 0.0F;
          score = op.scale * (weight * (dweights[t].at[n].at[i] - mean));
        }
      }
    });
  }

  template <typename Block>
  TERRACE_KERNEL void operator()(Block& block) const {
    const AttentionPlaces& places = op.places;
    auto* const memory = reinterpret_cast<T*>(block.shared_memory());
    const Tile<T> queries{memory, kStride};
    const Tile<T> douts{memory + kOwnRows * kStride, kStride};
    const Tile<T> keys{memory + 2 * kOwnRows * kStride, kStride};
    const Tile<T> values{keys.at + kKeys * kStride, kStride};
    const std::int64_t sequences = places.shape.batch * places.shape.heads;
    const std::int64_t tiles = (places.shape.sequence + kOwnRows - 1) / kOwnRows;
    const std::int64_t b = block.index() % sequences / places.shape.heads;
    const std::int64_t h = block.index() % sequences % places.shape.heads;
    const std::int64_t query = (tiles - 1 - block.index() / sequences) * kOwnRows;
    const HeadRows rows = places.qkv_rows(op.aligned);
    const T* const key_head = op.qkv + places.key(b, places.group(h));
    const T* const value_head = op.qkv + places.value(b, places.group(h));
    typename Block::template PerThread<SumsRow<Width / 8>> dquery;
    block.for_each_thread([&](int t) { dquery[t] = {}; });
    rows.template load<Width>(block, op.qkv + places.query(b, h), query, kOwnRows, queries);
    places.out_rows(op.aligned)
        .template load<Width>(block, op.dout + places.out(b, h), query, kOwnRows, douts);
    for (std::int64_t key = 0; key < query + kOwnRows; key += kKeys) {
      rows.template load<Width>(block, key_head, key, kKeys, keys);
      rows.template load<Width>(block, value_head, key, kKeys, values);
      block.sync();
      Scores<Block> scores;
      Scores<Block> dweights;
      block.for_each_thread([&](int t) { scores[t] = dweights[t] = {}; });
      multiply_row<kKeys / 8, Width>(
          block, scores, [&](int k, int t) { return a_of_tile(queries, t / 32 * 16, k, t); },
          [&](int k, int n, int t) { return b_of_rows(keys, n, k, t); });
      multiply_row<kKeys / 8, Width>(
          block, dweights, [&](int k, int t) { return a_of_tile(douts, t / 32 * 16, k, t); },
          [&](int k, int n, int t) { return b_of_rows(values, n, k, t); });
      to_gradients(block, places.row(b, h), query, key, scores, dweights);
      multiply_row<Width / 8, kKeys>(
          block, dquery,
          [&](int k, int t) { return a_of_sums<T>(scores[t].at[k / 8], scores[t].at[k / 8 + 1]); },
          [&](int k, int n, int t) { return b_of_columns(keys, k, n, t); });
      block.sync();
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
  static constexpr std::size_t kSharedBytes =
      2 * (kOwnRows + kQueries) * kTileRowBytes<T, Width> + 2 * kQueries * sizeof(float);

  template <typename Block>
  using Scores = typename Block::template PerThread<SumsRow<kQueries / 8>>;
  template <typename Block>
  using Sums = typename Block::template PerThread<SumsRow<Width / 8>>;

  struct Tiles {
    Tile<T> keys, values, queries, douts;
    float* log_sum_exp;  // of the queries
    float* means;
  };
  TERRACE_KERNEL Tiles tiles_in(std::byte* memory) const {
    T* const keys = reinterpret_cast<T*>(memory);
    T* const values = keys + kOwnRows * kStride;
    T* const queries = values + kOwnRows * kStride;
    T* const douts = queries + kQueries * kStride;
    auto* const rows = reinterpret_cast<float*>(douts + kQueries * kStride);
    return {{keys, kStride}, {values, kStride}, {queries, kStride}, {douts, kStride}, rows,
            rows + kQueries};
  }

  // Scores become weights, and dweights the gradients of scores.
  template <typename Block>
  TERRACE_KERNEL void to_gradients(Block& block, const Tiles& tiles, std::int64_t key,
                                   std::int64_t query, Scores<Block>& scores,
                                   Scores<Block>& dweights) const {
    block.for_each_thread([&](int t) {
      TERRACE_UNROLL
      for (int n = 0; n < kQueries / 8; ++n) {
        TERRACE_UNROLL
        for (int i = 0; i < 4; ++i) {
          const int column = n * 8 + mma_col(t, i);
          const std::int64_t q = query + column;
          const bool counts =
              q < op.places.shape.sequence && key + t / 32 * 16 + mma_row(t, i) <= q;
          float& score = scores[t].at[n].at[i];
          float& dweight = dweights[t].at[n].at[i];
          score = counts ? op.weight(score, tiles.log_sum_exp[column]) : 0.0F;
          dweight = counts ? op.scale * (score * (dweight - tiles.means[column])) : 0.0F;
        }
      }
    });
  }

  template <typename Block>
  TERRACE_KERNEL void load_queries(Block& block, const Tiles& tiles, std::int64_t b, std::int64_t h,
                                   std::int64_t query) const {
    const AttentionPlaces& places = op.places;
    places.qkv_rows(op.aligned)
        .template load<Width>(block, op.qkv + places.query(b, h), query, kQueries, tiles.queries);
    places.out_rows(op.aligned)
        .template load<Width>(block, op.dout + places.out(b, h), query, kQueries, tiles.douts);
    block.for_each_thread([&](int t) {
      if (t >= kQueries) return;
      const bool is_there = query + t < places.shape.sequence;
      const std::int64_t at = places.row(b, h) + query + t;
      tiles.log_sum_exp[t] = is_there ? op.log_sum_exp[at] : 0.0F;
      tiles.means[t] = is_there ? op.means[at] : 0.0F;
    });
  }

  template <typename Block>
  TERRACE_KERNEL void add_queries(Block& block, const Tiles& tiles, std::int64_t key,
                                  std::int64_t query, Sums<Block>& dkey,
                                  Sums<Block>& dvalue) const {
    Scores<Block> scores;
    Scores<Block> dweights;
    block.for_each_thread([&](int t) { scores[t] = dweights[t] = {}; });
    multiply_row<kQueries / 8, Width>(
        block, scores, [&](int k, int t) { return a_of_tile(tiles.keys, t / 32 * 16, k, t); },
        [&](int k, int n, int t) { return b_of_rows(tiles.queries, n, k, t); });
    multiply_row<kQueries / 8, Width>(
        block, dweights, [&](int k, int t) { return a_of_tile(tiles.values, t / 32 * 16, k, t); },
        [&](int k, int n, int t) { return b_of_rows(tiles.douts, n, k, t); });
    to_gradients(block, tiles, key, query, scores, dweights);
    multiply_row<Width / 8, kQueries>(
        block, dvalue,
        [&](int k, int t) { return a_of_sums<T>(scores[t].at[k / 8], scores[t].at[k / 8 + 1]); },
        [&](int k, int n, int t) { return b_of_columns(tiles.douts, k, n, t); });
    multiply_row<Width / 8, kQueries>(
        block, dkey,
        [&](int k, int t) {
          return a_of_sums<T>(dweights[t].at[k / 8], dweights[t].at[k / 8 + 1]);
        },
        [&](int k, int n, int t) { return b_of_columns(tiles.queries, k, n, t); });
  }

  template <typename Block>
  TERRACE_KERNEL void operator()(Block& block) const {
    const AttentionPlaces& places = op.places;
    const AttentionShape& s = places.shape;
    const Tiles tiles = tiles_in(block.shared_memory());
    const std::int64_t sequences = s.batch * s.key_value_heads;
    const std::int64_t b = block.index() % sequences / s.key_value_heads;
    const std::int64_t g = block.index() % sequences % s.key_value_heads;
    const std::int64_t key = block.index() / sequences * kOwnRows;  // the first have most queries
    const std::int64_t heads = s.heads / s.key_value_heads;
    const HeadRows rows = places.qkv_rows(op.aligned);
    rows.template load<Width>(block, op.qkv + places.key(b, g), key, kOwnRows, tiles.keys);
    rows.template load<Width>(block, op.qkv + places.value(b, g), key, kOwnRows, tiles.values);
    Sums<Block> dkey;
    Sums<Block> dvalue;
    block.for_each_thread([&](int t) { dkey[t] = dvalue[t] = {}; });
    for (std::int64_t h = g * heads; h < (g + 1) * heads; ++h) {
      for (std::int64_t query = key; query < s.sequence; query += kQueries) {
        load_queries(block, tiles, b, h, query);
        block.sync();
        add_queries(block, tiles, key, query, dkey, dvalue);
        block.sync();
      }
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
      const bool aligned = may_load_packs({op.qkv.data, op.dout.data}, s.head_width * sizeof(T));
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
