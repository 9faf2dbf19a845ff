#pragma once

#include <math.h>

#include <cstdint>
#include <limits>

#include "kernels/shared/attention_tile.h"

// The gradients of attention, without atomic additions: one kernel computes the gradients of
// queries, with a block for 64 queries, and one computes the gradients of keys and values, with a
// block for 64 keys that goes through all queries of its group's heads in order. Both compute the
// weights again from log_sum_exp. dscore = scale weight (dout.v - mean), with mean = dout.out of
// the query; where scores are capped, this is multiplied by 1 - (score / cap)^2. For the widest
// heads the gradients of keys and values do not fit into a thread's registers together, so each
// kernel computes one of the two.
namespace terrace::shared {

// mean[b, h, i] = dout.out; four threads compute a row.
template <typename T>
struct AttentionMeansKernel {
  const T* out;
  const T* dout;
  float* means;
  AttentionPlaces places;

  template <typename Block>
  TERRACE_KERNEL void operator()(Block& block) const {
    const AttentionShape& s = places.shape;
    const std::int64_t rows = s.batch * s.queries * s.heads;
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
      means[places.row(position / s.queries, h) + position % s.queries] = sums[t];
    });
  }
};

// The arguments that all gradient kernels share.
template <typename T>
struct AttentionGradient {
  const T* q;
  const T* k;
  const T* v;
  const T* dout;
  const float* log_sum_exp;
  const float* means;
  T* dq;
  T* dk;
  T* dv;
  AttentionPlaces places;
  AttentionStrides strides, gradient_strides;
  KeyRule rule;
  bool aligned;

  // Returns the weight of a score that is not scaled yet.
  TERRACE_KERNEL float weight(float score, float minus_log2_sum_exp) const {
    return power_of_two(::fmaf(score, rule.scale * kLog2e, minus_log2_sum_exp));
  }

  // The weight and the gradient of a score that may be capped, where the gradient of the weight is
  // dweight + mean.
  struct Gradient {
    float weight, dscore;
  };
  TERRACE_KERNEL Gradient gradient(float score, float minus_log2_sum_exp, float dweight) const {
    if (rule.soft_cap <= 0.0F) {
      const float by = weight(score, minus_log2_sum_exp);
      return {by, rule.scale * (by * dweight)};
    }
    const float capped = rule.capped(score);
    const float bent = capped / rule.soft_cap;
    const float by = power_of_two(::fmaf(capped, kLog2e, minus_log2_sum_exp));
    return {by, rule.scale * (by * dweight) * (1.0F - bent * bent)};
  }

  // Rounds and stores sums, 16 rows for each warp, in the rows of a head.
  template <int Width, typename Block, typename Sums>
  TERRACE_KERNEL void store(Block& block, Sums& sums, T* head, std::int64_t row,
                            const HeadRows& rows) const {
    block.for_each_thread([&](int t) {
      store_rows<Width>(sums[t], t, RowsOfHead<T>{head, row, rows}, [](int) { return 1.0F; });
    });
  }
};

// Which of a tile's scores may have to be masked or capped.
enum class Masks : std::uint8_t {
  kNone,
  kDiagonal,  // keys past a query
  kRule,      // also keys before a query's first one, and the cap
};

// Ruled: as in AttentionForwardKernel.
template <typename T, int Width, bool Ruled>
struct QueryGradientKernel {
  AttentionGradient<T> op;

  static constexpr int kKeys = kOtherRows<Width>;
  static constexpr int kStride = kTileStride<T, Width>;
  static constexpr int kTiles = kOtherTiles<T, Width>;  // of keys, and of values
  static constexpr std::size_t kSharedBytes =
      (2 * kOwnRows + 2 * kTiles * kKeys) * kTileRowBytes<T, Width>;
  static_assert(kSharedBytes <= kSharedBytesMax);

  template <typename Block>
  using Scores = typename Block::template PerThread<SumsRow<kKeys / 8>>;
  // The numbers of a thread's two rows.
  struct RowState {
    float minus_log2_sum_exp[2], mean[2];
    int first_key[2];
  };
  template <typename Block>
  using States = typename Block::template PerThread<RowState>;
  // The first of the block's queries, and of a tile's keys.
  struct Place {
    std::int64_t query, key;
  };

  // Loads the numbers of a thread's rows. A query past the sequence gets no weights.
  TERRACE_KERNEL RowState row_state(int t, std::int64_t b, std::int64_t h,
                                    std::int64_t query) const {
    const std::int64_t row_at = op.places.row(b, h);
    RowState state;
    for (int half = 0; half < 2; ++half) {
      const std::int64_t q = query + t / 32 * 16 + mma_row(t, 2 * half);
      const bool is_there = q < op.places.shape.queries;
      state.minus_log2_sum_exp[half] =
          is_there ? op.log_sum_exp[row_at + q] * -kLog2e : -std::numeric_limits<float>::infinity();
      state.mean[half] = is_there ? op.means[row_at + q] : 0.0F;
      if constexpr (Ruled) state.first_key[half] = static_cast<int>(op.rule.first_key(b, q));
    }
    return state;
  }

  // Turns scores into the gradients of scores, given dweights = dout.v.
  template <Masks Mask, typename Block>
  TERRACE_KERNEL void to_gradients(Block& block, const Place& at, States<Block>& states,
                                   Scores<Block>& scores, Scores<Block>& dweights) const {
    const int first = static_cast<int>(at.query - at.key);
    const int first_key = static_cast<int>(at.key);
    block.for_each_thread([&](int t) {
      TERRACE_UNROLL
      for (int n = 0; n < kKeys / 8; ++n) {
        TERRACE_UNROLL
        for (int i = 0; i < 4; ++i) {
          float& score = scores[t].at[n].at[i];
          const float minus_log2 = states[t].minus_log2_sum_exp[i / 2];
          const float dweight = dweights[t].at[n].at[i] - states[t].mean[i / 2];
          const int column = n * 8 + mma_col(t, i);
          const bool is_late = column > first + t / 32 * 16 + mma_row(t, i);
          if constexpr (Mask == Masks::kRule) {
            const bool is_hidden = is_late || first_key + column < states[t].first_key[i / 2];
            score = is_hidden ? 0.0F : op.gradient(score, minus_log2, dweight).dscore;
          } else {
            float weight = op.weight(score, minus_log2);
            if (Mask == Masks::kDiagonal && is_late) weight = 0.0F;
            score = op.rule.scale * (weight * dweight);
          }
        }
      }
    });
  }

  template <typename Block, typename Sums>
  TERRACE_KERNEL void add_keys(Block& block, const Place& at, const Tile<T>& keys,
                               States<Block>& states, Sums& dquery) const {
    const Tile<T> queries{reinterpret_cast<T*>(block.shared_memory()), kStride};
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
    if constexpr (Ruled) {
      to_gradients<Masks::kRule>(block, at, states, scores, dweights);
    } else if (at.query - at.key < kKeys - 1) {
      to_gradients<Masks::kDiagonal>(block, at, states, scores, dweights);
    } else {
      to_gradients<Masks::kNone>(block, at, states, scores, dweights);
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
    const std::int64_t tiles = (places.shape.queries + kOwnRows - 1) / kOwnRows;
    const std::int64_t b = block.index() % sequences / places.shape.heads;
    const std::int64_t h = block.index() % sequences % places.shape.heads;
    const std::int64_t query = (tiles - 1 - block.index() / sequences) * kOwnRows;
    const AttentionStrides& from = op.strides;
    const HeadRows key_rows = places.key_rows(from.k, op.aligned);
    const HeadRows value_rows = places.key_rows(from.v, op.aligned);
    const T* const key_head = op.k + places.key(b, places.group(h), from.k);
    const T* const value_head = op.v + places.key(b, places.group(h), from.v);
    // Returns the tile for the keys from `key` on, in one of the places; their values follow it.
    const auto keys_of = [&](std::int64_t key) {
      const std::int64_t place = key / kKeys % kTiles;
      return Tile<T>{memory + (2 * kOwnRows + place * 2 * kKeys) * kStride, kStride};
    };
    const auto load = [&](std::int64_t key) {
      const Tile<T> keys = keys_of(key);
      key_rows.template load<Width, kKeys>(block, key_head, key, keys);
      value_rows.template load<Width, kKeys>(block, value_head, key,
                                             {keys.at + kKeys * kStride, kStride});
    };
    typename Block::template PerThread<SumsRow<Width / 8>> dquery;
    States<Block> states;
    block.for_each_thread([&](int t) {
      dquery[t] = {};
      states[t] = row_state(t, b, h, query);
    });
    const std::int64_t out_stride = places.out_stride();
    places.query_rows(from.q, op.aligned)
        .template load<Width, kOwnRows>(block, op.q + places.query(b, h, from.q), query, queries);
    places.query_rows(out_stride, op.aligned)
        .template load<Width, kOwnRows>(block, op.dout + places.query(b, h, out_stride), query,
                                        douts);
    const std::int64_t end =
        query + kOwnRows < places.shape.keys ? query + kOwnRows : places.shape.keys;
    const std::int64_t begin = Ruled ? op.rule.first_key(b, query) / kKeys * kKeys : 0;
    load(begin);
    for (std::int64_t key = begin; key < end; key += kKeys) {
      block.await_copies();
      block.sync();
      if (kTiles > 1 && key + kKeys < end) load(key + kKeys);
      add_keys(block, {query, key}, keys_of(key), states, dquery);
      if (kTiles == 1 && key + kKeys < end) {
        block.sync();
        load(key + kKeys);
      }
    }
    const std::int64_t to = op.gradient_strides.q;
    op.template store<Width>(block, dquery, op.dq + places.query(b, h, to), query,
                             places.query_rows(to, op.aligned));
  }
};

// Which gradients a kernel computes.
enum class KeyGradients : std::uint8_t { kBoth, kOfKeys, kOfValues };

// Everything is transposed: rows are keys, columns queries.
template <typename T, int Width, bool Ruled, KeyGradients Which>
struct KeyGradientKernel {
  AttentionGradient<T> op;

  static constexpr bool kHasKeys = Which != KeyGradients::kOfValues;
  static constexpr bool kHasValues = Which != KeyGradients::kOfKeys;
  static constexpr int kQueries = kOtherRows<Width>;
  static constexpr int kTiles = kOtherTiles<T, Width>;  // of queries
  static constexpr int kStride = kTileStride<T, Width>;
  // The bytes of one tile of queries: the queries, their douts, and three numbers for each.
  static constexpr std::size_t kTileBytes =
      2 * kQueries * kTileRowBytes<T, Width> + 3 * kQueries * sizeof(float);
  static constexpr std::size_t kSharedBytes =
      2 * kOwnRows * kTileRowBytes<T, Width> + kTiles * kTileBytes;
  static_assert(kSharedBytes <= kSharedBytesMax);

  template <typename Block>
  using Scores = typename Block::template PerThread<SumsRow<kQueries / 8>>;
  template <typename Block>
  using Sums = typename Block::template PerThread<SumsRow<Width / 8>>;
  template <typename Block>
  struct Both {
    Sums<Block> dkey, dvalue;

    TERRACE_KERNEL void clear(int t) {
      if constexpr (kHasKeys) dkey[t] = {};
      if constexpr (kHasValues) dvalue[t] = {};
    }
  };

  struct Own {
    Tile<T> keys, values;
  };
  struct Other {
    Tile<T> queries, douts;
    float* log_sum_exp;
    float* means;
    int* first_keys;
  };
  TERRACE_KERNEL Other other_in(std::byte* memory, std::int64_t place) const {
    std::byte* const at = memory + 2 * kOwnRows * kTileRowBytes<T, Width> + place * kTileBytes;
    T* const queries = reinterpret_cast<T*>(at);
    T* const douts = queries + kQueries * kStride;
    auto* const numbers = reinterpret_cast<float*>(douts + kQueries * kStride);
    return {{queries, kStride},
            {douts, kStride},
            numbers,
            numbers + kQueries,
            reinterpret_cast<int*>(numbers + 2 * kQueries)};
  }

  // The first of the block's keys, and of a tile's queries.
  struct Place {
    std::int64_t key, query;
  };

  // Turns scores into weights, and dweights into the gradients of scores. Queries past the sequence
  // are zeros, and add zeros.
  template <Masks Mask, typename Block>
  TERRACE_KERNEL void to_gradients(Block& block, const Other& other, const Place& at,
                                   Scores<Block>& scores, Scores<Block>& dweights) const {
    const int first = static_cast<int>(at.key - at.query);
    const int first_key = static_cast<int>(at.key);
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
            const int row = t / 32 * 16 + mma_row(t, i);
            if constexpr (Mask == Masks::kRule) {
              const auto [weight, dscore] = op.gradient(score, minus_log2, dweight - mean);
              const bool is_hidden =
                  first + row > column || first_key + row < other.first_keys[column];
              score = is_hidden ? 0.0F : weight;
              dweight = is_hidden ? 0.0F : dscore;
            } else {
              score = op.weight(score, minus_log2);
              if (Mask == Masks::kDiagonal && first + row > column) score = 0.0F;
              dweight = op.rule.scale * (score * (dweight - mean));
            }
          }
        }
      }
    });
  }

  template <typename Block>
  TERRACE_KERNEL void load_queries(Block& block, const Other& other, std::int64_t b, std::int64_t h,
                                   std::int64_t query) const {
    const AttentionPlaces& places = op.places;
    const std::int64_t stride = op.strides.q;
    const std::int64_t out_stride = places.out_stride();
    places.query_rows(stride, op.aligned)
        .template load<Width, kQueries>(block, op.q + places.query(b, h, stride), query,
                                        other.queries);
    places.query_rows(out_stride, op.aligned)
        .template load<Width, kQueries>(block, op.dout + places.query(b, h, out_stride), query,
                                        other.douts);
    const std::int64_t row_at = places.row(b, h);
    block.for_each_thread([&](int t) {
      if (t >= kQueries) return;
      const int count = query + t < places.shape.queries ? static_cast<int>(sizeof(float)) : 0;
      const std::int64_t at = row_at + (count != 0 ? query + t : 0);
      block.template copy_async<sizeof(float)>(other.log_sum_exp + t, op.log_sum_exp + at, count);
      block.template copy_async<sizeof(float)>(other.means + t, op.means + at, count);
      if constexpr (Ruled) {
        other.first_keys[t] = static_cast<int>(op.rule.first_key(b, query + t));
      }
    });
  }

  template <typename Block>
  TERRACE_KERNEL void add_queries(Block& block, const Own& own, const Other& other, const Place& at,
                                  Both<Block>& sums) const {
    Scores<Block> scores;
    Scores<Block> dweights;
    block.for_each_thread([&](int t) { scores[t] = dweights[t] = {}; });
    multiply_row<kQueries / 8, Width>(
        block, scores, [&](int k, int t) { return block.a_of_tile(own.keys, t / 32 * 16, k, t); },
        [&](int k, int n, int t) { return block.b2_of_rows(other.queries, n, k, t); });
    if constexpr (kHasKeys) {
      multiply_row<kQueries / 8, Width>(
          block, dweights,
          [&](int k, int t) { return block.a_of_tile(own.values, t / 32 * 16, k, t); },
          [&](int k, int n, int t) { return block.b2_of_rows(other.douts, n, k, t); });
    }
    if constexpr (Ruled) {
      to_gradients<Masks::kRule>(block, other, at, scores, dweights);
    } else if (at.key - at.query > 1 - kOwnRows) {
      to_gradients<Masks::kDiagonal>(block, other, at, scores, dweights);
    } else {
      to_gradients<Masks::kNone>(block, other, at, scores, dweights);
    }
    if constexpr (kHasValues) {
      multiply_row<Width / 8, kQueries>(
          block, sums.dvalue,
          [&](int k, int t) { return a_of_sums<T>(scores[t].at[k / 8], scores[t].at[k / 8 + 1]); },
          [&](int k, int n, int t) { return block.b2_of_columns(other.douts, k, n, t); });
    }
    if constexpr (kHasKeys) {
      multiply_row<Width / 8, kQueries>(
          block, sums.dkey,
          [&](int k, int t) {
            return a_of_sums<T>(dweights[t].at[k / 8], dweights[t].at[k / 8 + 1]);
          },
          [&](int k, int n, int t) { return block.b2_of_columns(other.queries, k, n, t); });
    }
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
    places.key_rows(op.strides.k, op.aligned)
        .template load<Width, kOwnRows>(block, op.k + places.key(b, g, op.strides.k), key,
                                        own.keys);
    if constexpr (kHasKeys) {
      places.key_rows(op.strides.v, op.aligned)
          .template load<Width, kOwnRows>(block, op.v + places.key(b, g, op.strides.v), key,
                                          own.values);
    }
    Both<Block> sums;
    block.for_each_thread([&](int t) { sums.clear(t); });
    const std::int64_t last_key = key + kOwnRows < s.keys ? key + kOwnRows - 1 : s.keys - 1;
    const std::int64_t end = Ruled ? op.rule.end_of_queries(b, key, last_key) : s.queries;
    std::int64_t h = g * heads;
    std::int64_t query = key;
    load_queries(block, other_in(memory, 0), b, h, query);
    for (std::int64_t place = 0; h < (g + 1) * heads; place = (place + 1) % kTiles) {
      const Place at{key, query};
      query += kQueries;
      if (query >= end) {
        query = key;
        ++h;
      }
      const bool goes_on = h < (g + 1) * heads;
      block.await_copies();
      block.sync();
      if (kTiles > 1 && goes_on) {
        load_queries(block, other_in(memory, (place + 1) % kTiles), b, h, query);
      }
      add_queries(block, own, other_in(memory, place), at, sums);
      if (kTiles == 1 && goes_on) {
        block.sync();
        load_queries(block, other_in(memory, 0), b, h, query);
      }
    }
    const AttentionStrides& to = op.gradient_strides;
    if constexpr (kHasKeys) {
      op.template store<Width>(block, sums.dkey, op.dk + places.key(b, g, to.k), key,
                               places.key_rows(to.k, op.aligned));
    }
    if constexpr (kHasValues) {
      op.template store<Width>(block, sums.dvalue, op.dv + places.key(b, g, to.v), key,
                               places.key_rows(to.v, op.aligned));
    }
  }
};

inline std::size_t attention_backward_workspace(const AttentionBackward& op) {
  const AttentionShape& s = op.shape;
  return WorkspaceCutter::padded_bytes(static_cast<std::size_t>(s.batch * s.heads * s.queries) *
                                       sizeof(float));
}

template <typename T, typename Launcher>
float* launch_means(Launcher& launcher, const AttentionBackward& op) {
  const std::int64_t rows = op.shape.batch * op.shape.heads * op.shape.queries;
  WorkspaceCutter workspace(launcher.workspace());
  float* const means = workspace.take<float>(rows);
  const AttentionMeansKernel<T> kernel{op.out.as<T>(), op.dout.as<T>(), means, {op.shape}};
  launcher.template launch<kAttentionThreads>("attention_backward", kernel,
                                              divide_up(rows, kAttentionThreads / 4));
  return means;
}

inline bool may_load_heads(const AttentionBackward& op) {
  const std::int64_t D = op.shape.head_width;
  for (const StridedRows& rows : {op.q, op.k, op.v, op.dq, op.dk, op.dv}) {
    if (!may_load_heads(rows, D)) return false;
  }
  return may_load_packs({op.dout.data}, 0);
}

template <typename Kernel, typename T, typename Launcher>
void launch_key_gradients(Launcher& launcher, const AttentionGradient<T>& gradient) {
  const AttentionShape& s = gradient.places.shape;
  launcher.template launch<kAttentionThreads>(
      "attention_backward", Kernel{gradient},
      s.batch * s.key_value_heads * divide_up(s.keys, kOwnRows), Kernel::kSharedBytes);
}

template <bool Ruled, int Width, typename T, typename Launcher>
void launch_gradients(Launcher& launcher, const AttentionGradient<T>& gradient) {
  using ForQueries = QueryGradientKernel<T, Width, Ruled>;
  const AttentionShape& s = gradient.places.shape;
  launcher.template launch<kAttentionThreads>("attention_backward", ForQueries{gradient},
                                              s.batch * s.heads * divide_up(s.queries, kOwnRows),
                                              ForQueries::kSharedBytes);
  if constexpr (Width <= 128) {
    using ForBoth = KeyGradientKernel<T, Width, Ruled, KeyGradients::kBoth>;
    launch_key_gradients<ForBoth>(launcher, gradient);
  } else {
    using ForKeys = KeyGradientKernel<T, Width, Ruled, KeyGradients::kOfKeys>;
    using ForValues = KeyGradientKernel<T, Width, Ruled, KeyGradients::kOfValues>;
    launch_key_gradients<ForKeys>(launcher, gradient);
    launch_key_gradients<ForValues>(launcher, gradient);
  }
}

template <typename Launcher>
void attention_backward(Launcher& launcher, const AttentionBackward& op) {
  const AttentionShape& s = op.shape;
  TERRACE_CHECK_EQ(s.queries, s.keys);
  check_heads(s, op.q, op.k, op.v);
  check_heads(s, op.dq, op.dk, op.dv);
  const std::int64_t elements = s.batch * s.queries * s.heads * s.head_width;
  TERRACE_CHECK_EQ(op.out.elements(), elements);
  TERRACE_CHECK_EQ(op.dout.elements(), elements);
  if (launcher.attention(op)) return;
  with_compute_type(op.q.dtype, [&]<typename T>(std::type_identity<T>) {
    const AttentionGradient<T> gradient{
        .q = elements_of<const T>(op.q),
        .k = elements_of<const T>(op.k),
        .v = elements_of<const T>(op.v),
        .dout = op.dout.as<T>(),
        .log_sum_exp = op.log_sum_exp.as<float>(),
        .means = launch_means<T>(launcher, op),
        .dq = elements_of<T>(op.dq),
        .dk = elements_of<T>(op.dk),
        .dv = elements_of<T>(op.dv),
        .places = {s},
        .strides = {op.q.stride, op.k.stride, op.v.stride},
        .gradient_strides = {op.dq.stride, op.dk.stride, op.dv.stride},
        .rule = key_rule(s, op.rule),
        .aligned = may_load_heads(op)};
    with_head_width(s.head_width, [&]<int Width>(std::integral_constant<int, Width>) {
      with_rule<Width>(gradient.rule, [&]<bool Ruled>(std::bool_constant<Ruled>) {
        launch_gradients<Ruled, Width>(launcher, gradient);
      });
    });
  });
}

}  // namespace terrace::shared
