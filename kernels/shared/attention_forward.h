#pragma once

#include <math.h>

#include <cstdint>
#include <limits>

#include "kernels/shared/attention_tile.h"

// Causal attention, with a block of threads for 64 queries of a head. Keys and values come in
// tiles; each row keeps the maximum of its scores and the sum of its exponentials, and the sums so
// far are scaled down when the maximum grows (Dao, "FlashAttention-2", 2023). Products are of the
// compute type with fp32 sums; weights are rounded to the compute type.
namespace terrace::shared {

// Without Ruled, scores have no cap and queries see all keys up to their own; the kernel then uses
// fewer registers, so that more blocks run at a time.
template <typename T, int Width, bool Ruled>
struct AttentionForwardKernel {
  const T* q;
  const T* k;
  const T* v;
  T* out;
  float* log_sum_exp;
  AttentionPlaces places;
  AttentionStrides strides;
  KeyRule rule;
  const T* sinks;  // may be null
  bool aligned;

  static constexpr float kLeast = -std::numeric_limits<float>::infinity();
  static constexpr int kKeys = kOtherRows<Width>;
  static constexpr int kTiles = kOtherTiles<T, Width>;  // of keys, and of values
  static constexpr std::size_t kSharedBytes =
      (kOwnRows + 2 * kTiles * kKeys) * kTileRowBytes<T, Width>;
  static_assert(kSharedBytes <= kSharedBytesMax);

  template <typename Block>
  using Scores = typename Block::template PerThread<SumsRow<kKeys / 8>>;
  template <typename Block>
  using Mixed = typename Block::template PerThread<SumsRow<Width / 8>>;
  // The numbers of a thread's two rows.
  struct RowState {
    float max[2], sum[2];
    int first_key[2];
  };
  template <typename Block>
  using States = typename Block::template PerThread<RowState>;

  struct Place {
    std::int64_t b, h, query;  // the first of the block's queries
  };
  // Blocks with the longest rows begin first.
  TERRACE_KERNEL Place place(std::int64_t index) const {
    const std::int64_t sequences = places.shape.batch * places.shape.heads;
    const std::int64_t tiles = (places.shape.queries + kOwnRows - 1) / kOwnRows;
    const std::int64_t at = index % sequences;
    return {at / places.shape.heads, at % places.shape.heads,
            (tiles - 1 - index / sequences) * kOwnRows};
  }

  // Returns the factor by which scores still have to be multiplied: 1 if they are capped, since
  // capped scores are scaled already.
  TERRACE_KERNEL float scale_left() const {
    return Ruled && rule.soft_cap > 0.0F ? 1.0F : rule.scale;
  }

  // Returns the state before the first key. A sink is like a key that comes before all others and
  // has no value; the first of the four threads of a row adds its exponential.
  TERRACE_KERNEL RowState first_state(int t, std::int64_t h) const {
    if (sinks == nullptr) return {{kLeast, kLeast}, {0.0F, 0.0F}, {0, 0}};
    const float max = widened(sinks[h]) / scale_left();
    const float sum = mma_pair(t) == 0 ? 1.0F : 0.0F;
    return {{max, max}, {sum, sum}, {0, 0}};
  }

  // Hides, in the tile that begins at `key`, the keys past the query.
  template <typename Block>
  TERRACE_KERNEL void mask(Block& block, const Place& at, std::int64_t key,
                           Scores<Block>& scores) const {
    const int first = static_cast<int>(rule.before + at.query - key);
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

  // Caps scores, and hides keys before the query's first one.
  template <typename Block>
  TERRACE_KERNEL void apply_rule(Block& block, std::int64_t key, States<Block>& states,
                                 Scores<Block>& scores) const {
    const int first = static_cast<int>(key);
    block.for_each_thread([&](int t) {
      TERRACE_UNROLL
      for (int n = 0; n < kKeys / 8; ++n) {
        TERRACE_UNROLL
        for (int i = 0; i < 4; ++i) {
          float& score = scores[t].at[n].at[i];
          if (rule.soft_cap > 0.0F) score = rule.capped(score);
          if (first + n * 8 + mma_col(t, i) < states[t].first_key[i / 2]) score = kLeast;
        }
      }
    });
  }

  // Turns scores into weights. Where the maximum grew, scales `mixed`, the sums so far, to match.
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
    const float exponent = scale_left() * kLog2e;
    block.for_each_thread([&](int t) {
      RowState& state = states[t];
      TERRACE_UNROLL
      for (int row = 0; row < 2; ++row) {
        const float most = ::fmaxf(state.max[row], max[row][t]);
        // A row that has seen no key yet has weights of 0.
        const float minus_most = Ruled && most == kLeast ? 0.0F : -most * exponent;
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
    T* const head = out + places.query(at.b, at.h, places.out_stride());
    const HeadRows rows = places.query_rows(places.out_stride(), aligned);
    block.for_each_thread([&](int t) {
      store_rows<Width>(mixed[t], t, RowsOfHead<T>{head, at.query, rows},
                        [&](int half) { return 1.0F / sums[half][t]; });
      TERRACE_UNROLL
      for (int half = 0; half < 2; ++half) {
        const std::int64_t query = at.query + t / 32 * 16 + mma_row(t, 2 * half);
        if (mma_pair(t) != 0 || query >= rows.T) continue;
        log_sum_exp[places.row(at.b, at.h) + query] =
            states[t].max[half] * scale_left() + ::logf(sums[half][t]);
      }
    });
  }

  template <typename Block>
  TERRACE_KERNEL void operator()(Block& block) const {
    auto* const memory = reinterpret_cast<T*>(block.shared_memory());
    constexpr int kStride = kTileStride<T, Width>;
    const Tile<T> queries{memory, kStride};
    const Place at = place(block.index());
    const std::int64_t g = places.group(at.h);
    const HeadRows key_rows = places.key_rows(strides.k, aligned);
    const HeadRows value_rows = places.key_rows(strides.v, aligned);
    const T* const key_head = k + places.key(at.b, g, strides.k);
    const T* const value_head = v + places.key(at.b, g, strides.v);
    // Returns the tile for the keys from `key` on, in one of the places; their values follow it.
    const auto keys_of = [&](std::int64_t key) {
      const std::int64_t place = key / kKeys % kTiles;
      return Tile<T>{memory + (kOwnRows + place * 2 * kKeys) * kStride, kStride};
    };
    const auto values_of = [&](std::int64_t key) {
      return Tile<T>{keys_of(key).at + kKeys * kStride, kStride};
    };
    const auto load = [&](std::int64_t key) {
      key_rows.template load<Width, kKeys>(block, key_head, key, keys_of(key));
      value_rows.template load<Width, kKeys>(block, value_head, key, values_of(key));
    };
    States<Block> states;
    Mixed<Block> mixed;
    block.for_each_thread([&](int t) {
      states[t] = first_state(t, at.h);
      mixed[t] = {};
      for (int half = 0; Ruled && half < 2; ++half) {
        const std::int64_t query = at.query + t / 32 * 16 + mma_row(t, 2 * half);
        states[t].first_key[half] = static_cast<int>(rule.first_key(at.b, query));
      }
    });
    places.query_rows(strides.q, aligned)
        .template load<Width, kOwnRows>(block, q + places.query(at.b, at.h, strides.q), at.query,
                                        queries);
    const std::int64_t past = rule.before + at.query + kOwnRows;
    const std::int64_t end = past < places.shape.keys ? past : places.shape.keys;
    const std::int64_t begin = Ruled ? rule.first_key(at.b, at.query) / kKeys * kKeys : 0;
    load(begin);
    for (std::int64_t key = begin; key < end; key += kKeys) {
      block.await_copies();
      block.sync();
      if (kTiles > 1 && key + kKeys < end) load(key + kKeys);
      const Tile<T> keys = keys_of(key);
      const Tile<T> values = values_of(key);
      Scores<Block> scores;
      block.for_each_thread([&](int t) { scores[t] = {}; });
      multiply_row<kKeys / 8, Width>(
          block, scores,
          [&](int depth, int t) { return block.a_of_tile(queries, t / 32 * 16, depth, t); },
          [&](int depth, int n, int t) { return block.b2_of_rows(keys, n, depth, t); });
      if constexpr (Ruled) apply_rule(block, key, states, scores);
      mask(block, at, key, scores);
      to_weights(block, scores, mixed, states);
      multiply_row<Width / 8, kKeys>(
          block, mixed,
          [&](int depth, int t) {
            return a_of_sums<T>(scores[t].at[depth / 8], scores[t].at[depth / 8 + 1]);
          },
          [&](int depth, int n, int t) { return block.b2_of_columns(values, depth, n, t); });
      if (kTiles == 1 && key + kKeys < end) {
        block.sync();
        load(key + kKeys);
      }
    }
    store(block, at, mixed, states);
  }
};

template <bool Ruled, int Width, typename T, typename Launcher>
void launch_attention(Launcher& launcher, const AttentionForward& op, const KeyRule& rule) {
  using Kernel = AttentionForwardKernel<T, Width, Ruled>;
  const AttentionShape& s = op.shape;
  const std::int64_t D = s.head_width;
  const bool aligned = may_load_heads(op.q, D) && may_load_heads(op.k, D) &&
                       may_load_heads(op.v, D) && may_load_packs({op.out.data}, 0);
  const Kernel kernel{.q = elements_of<const T>(op.q),
                      .k = elements_of<const T>(op.k),
                      .v = elements_of<const T>(op.v),
                      .out = op.out.as<T>(),
                      .log_sum_exp = op.log_sum_exp.as<float>(),
                      .places = {s},
                      .strides = {op.q.stride, op.k.stride, op.v.stride},
                      .rule = rule,
                      .sinks = op.rule.sinks.empty() ? nullptr : op.rule.sinks.as<T>(),
                      .aligned = aligned};
  launcher.template launch<kAttentionThreads>("attention_forward", kernel,
                                              s.batch * s.heads * divide_up(s.queries, kOwnRows),
                                              Kernel::kSharedBytes);
}

template <typename Launcher>
void attention_forward(Launcher& launcher, const AttentionForward& op) {
  const AttentionShape& s = op.shape;
  check_heads(s, op.q, op.k, op.v);
  TERRACE_CHECK_EQ(op.out.elements(), s.batch * s.queries * s.heads * s.head_width);
  if (!op.rule.sinks.empty()) TERRACE_CHECK_EQ(op.rule.sinks.elements(), s.heads);
  if (launcher.attention(op)) return;
  const KeyRule rule = key_rule(s, op.rule);
  with_compute_type(op.q.dtype, [&]<typename T>(std::type_identity<T>) {
    with_head_width(s.head_width, [&]<int Width>(std::integral_constant<int, Width>) {
      with_rule<Width>(rule, [&]<bool Ruled>(std::bool_constant<Ruled>) {
        launch_attention<Ruled, Width, T>(launcher, op, rule);
      });
    });
  });
}

}  // namespace terrace::shared
