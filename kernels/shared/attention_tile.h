#pragma once

#include <math.h>

#include <cstdint>
#include <type_traits>

#include "base/error.h"
#include "kernels/kernel_table.h"
#include "kernels/shared/block.h"
#include "kernels/shared/mma.h"

// Code that the attention kernels share: where heads lie, tiles of their rows, the exponential.
namespace terrace::shared {

// Four warps, each with 16 of a block's 64 rows (queries, or keys in the gradients of keys).
inline constexpr int kAttentionThreads = 128;
inline constexpr int kOwnRows = 64;
inline constexpr float kLog2e = 1.44269504088896340736F;
inline constexpr std::int64_t kHeadWidthMax = 256;

// A block of sm_80 may have 163 KiB of shared memory (CUDA C++ Programming Guide, "Technical
// Specifications per Compute Capability"), one of sm_90 227 KiB.
inline constexpr std::size_t kSharedBytesMax = 163 * 1024;

// Rows of the other side that a step of the loop takes, for heads of at most Width.
template <int Width>
inline constexpr int kOtherRows = Width <= 64    ? 64
                                  : Width <= 128 ? 32
                                                 : 16;

// The number of tiles of the other side in shared memory: the next is loaded while one is used. For
// the widest heads in fp32 there is room for one only.
template <typename T, int Width>
inline constexpr int kOtherTiles = sizeof(T) == 4 && Width > 128 ? 1 : 2;

// The rows of one head of one sequence within a matrix of heads.
struct HeadRows {
  std::int64_t T = 0;       // rows of the sequence
  std::int64_t D = 0;       // elements of a row
  std::int64_t stride = 0;  // from row to row
  bool aligned = false;     // rows are whole packs

  // Loads rows [row, row + Rows) of the head that begins at `head` into a tile of Width columns,
  // with zeros past the sequence and the head. They are there after block.await_copies() and a
  // sync().
  template <int Width, int Rows, typename Block, typename Element>
  TERRACE_KERNEL void load(Block& block, const Element* head, std::int64_t row,
                           const Tile<Element>& tile) const {
    constexpr int kPack = kPackOf<Element>;
    constexpr int kPacks = Width / kPack;
    constexpr int kStep = Block::kThreads / kPacks;  // rows that the block takes at once
    static_assert(Block::kThreads % kPacks == 0 && Rows % kStep == 0);
    block.for_each_thread([&](int t) {
      const int col = t % kPacks * kPack;
      const std::int64_t first = row + t / kPacks;
      const Element* const from = head + first * stride + col;
      Element* const to = &tile.element(t / kPacks, col);
      const std::int64_t rows = T - first;
      TERRACE_UNROLL
      for (int i = 0; i < Rows; i += kStep) {
        const bool is_there = i < rows && col < D;
        if (aligned) {
          block.template copy_async<16>(to + i * tile.stride, is_there ? from + i * stride : head,
                                        is_there ? 16 : 0);
        } else {
          const auto pack =
              load_pack(is_there ? from + i * stride : head, is_there ? D - col : 0, false);
          *reinterpret_cast<Pack<Element>*>(to + i * tile.stride) = pack;
        }
      }
    });
  }
};

// Returns two to the power x. A result below the least normal number may be 0.
TERRACE_KERNEL inline float power_of_two(float x) {
#if defined(__CUDA_ARCH__)
  float result = 0;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
#else
  return ::exp2f(x);
#endif
}

// Elements from row to row of a tile in shared memory: 16 bytes more than Width columns, so that
// rows begin in different banks.
template <typename T, int Width>
inline constexpr int kTileStride = Width + kPackOf<T>;

template <typename T, int Width>
inline constexpr std::size_t kTileRowBytes = sizeof(T) * kTileStride<T, Width>;

// Elements from row to row of an op's matrices, or of their gradients.
struct AttentionStrides {
  std::int64_t q = 0, k = 0, v = 0;
};

struct AttentionPlaces {
  AttentionShape shape;

  // Returns where the first row of a sequence's head begins, in a matrix of queries or of keys or
  // values.
  TERRACE_KERNEL std::int64_t query(std::int64_t b, std::int64_t h, std::int64_t stride) const {
    return b * shape.queries * stride + h * shape.head_width;
  }
  TERRACE_KERNEL std::int64_t key(std::int64_t b, std::int64_t g, std::int64_t stride) const {
    return b * shape.keys * stride + g * shape.head_width;
  }
  TERRACE_KERNEL std::int64_t group(std::int64_t h) const {
    return h / (shape.heads / shape.key_value_heads);
  }
  TERRACE_KERNEL std::int64_t out_stride() const { return shape.heads * shape.head_width; }
  // Returns where the head's first query is in log_sum_exp.
  TERRACE_KERNEL std::int64_t row(std::int64_t b, std::int64_t h) const {
    return (b * shape.heads + h) * shape.queries;
  }
  TERRACE_KERNEL HeadRows query_rows(std::int64_t stride, bool aligned) const {
    return {shape.queries, shape.head_width, stride, aligned};
  }
  TERRACE_KERNEL HeadRows key_rows(std::int64_t stride, bool aligned) const {
    return {shape.keys, shape.head_width, stride, aligned};
  }
};

// AttentionRule, and which keys a query sees under it.
struct KeyRule {
  float scale = 1.0F;
  float soft_cap = 0.0F;
  std::int64_t window = 0;
  const std::int32_t* starts = nullptr;  // AttentionRule::first_keys
  std::int64_t queries = 0;              // of a sequence
  std::int64_t before = 0;               // the position of its first query

  // Returns whether scores have no cap and queries see all keys up to their own.
  bool is_plain() const { return window <= 0 && starts == nullptr && soft_cap <= 0.0F; }

  // Returns the first key that query i of sequence b sees. A query past the sequence counts as the
  // last one.
  TERRACE_KERNEL std::int64_t first_key(std::int64_t b, std::int64_t i) const {
    const std::int64_t query = i < queries ? i : queries - 1;
    std::int64_t first = window > 0 ? before + query + 1 - window : 0;
    if (first < 0) first = 0;
    if (starts == nullptr) return first;
    const std::int64_t start = starts[b * queries + query];
    return first < start ? start : first;
  }
  // Returns the first query of sequence b, from `query` on, that no longer sees key j. It can
  // search by halving because first_key() never falls.
  TERRACE_KERNEL std::int64_t end_of_queries(std::int64_t b, std::int64_t query,
                                             std::int64_t j) const {
    std::int64_t end = queries;
    while (query < end) {
      const std::int64_t middle = query + (end - query) / 2;
      if (first_key(b, middle) > j) {
        end = middle;
      } else {
        query = middle + 1;
      }
    }
    return end;
  }

  // Returns the capped score of a product q.k; there must be a cap.
  TERRACE_KERNEL float capped(float product) const {
    return soft_cap * ::tanhf(product * (scale / soft_cap));
  }
};

inline KeyRule key_rule(const AttentionShape& s, const AttentionRule& rule) {
  const bool has_starts = !rule.first_keys.empty();
  if (has_starts) TERRACE_CHECK_EQ(rule.first_keys.elements(), s.batch * s.queries);
  return {.scale = rule.scale,
          .soft_cap = rule.soft_cap,
          .window = rule.window < s.keys ? rule.window : 0,
          .starts = has_starts ? rule.first_keys.as<std::int32_t>() : nullptr,
          .queries = s.queries,
          .before = s.keys - s.queries};
}

// Checks the matrices of queries, keys and values, or of their gradients.
inline void check_heads(const AttentionShape& s, const StridedRows& q, const StridedRows& k,
                        const StridedRows& v) {
  TERRACE_CHECK_EQ(s.heads % s.key_value_heads, 0);
  TERRACE_CHECK_LE(s.queries, s.keys);
  TERRACE_CHECK(k.dtype == q.dtype && v.dtype == q.dtype);
  TERRACE_CHECK_EQ(q.rows, s.batch * s.queries);
  TERRACE_CHECK_EQ(k.rows, s.batch * s.keys);
  TERRACE_CHECK_EQ(v.rows, s.batch * s.keys);
  TERRACE_CHECK_EQ(q.width, s.heads * s.head_width);
  TERRACE_CHECK_EQ(k.width, s.key_value_heads * s.head_width);
  TERRACE_CHECK_EQ(v.width, s.key_value_heads * s.head_width);
}

// Returns whether all heads of a matrix begin on packs and are whole packs.
inline bool may_load_heads(const StridedRows& rows, std::int64_t D) {
  const std::size_t element = size_of(rows.dtype);
  return may_load_packs({rows.data}, static_cast<std::size_t>(D) * element) &&
         may_load_packs({}, static_cast<std::size_t>(rows.stride) * element);
}

template <typename T>
T* elements_of(const StridedRows& rows) {
  TERRACE_CHECK(DTypeOf<std::remove_const_t<T>>::value == rows.dtype);
  return reinterpret_cast<T*>(rows.data);
}

// Refuses, when a step is planned, a model that cannot be computed.
inline void check_head_width(std::int64_t D) {
  if (D <= kHeadWidthMax) return;
  throw ConfigError("attention on CUDA takes heads of at most 256 elements",
                    "compute this model on the device cpu");
}

// Calls body(std::integral_constant<int, Width>) with the least width that holds a head.
template <typename Body>
void with_head_width(std::int64_t D, Body&& body) {
  TERRACE_CHECK_LE(D, kHeadWidthMax);
  if (D <= 64) return body(std::integral_constant<int, 64>{});
  if (D <= 128) return body(std::integral_constant<int, 128>{});
  body(std::integral_constant<int, kHeadWidthMax>{});
}

// Calls body(std::bool_constant<Ruled>), where Ruled tells whether the kernels apply a rule. The
// widest heads have only kernels that do.
template <int Width, typename Body>
void with_rule(const KeyRule& rule, Body&& body) {
  if constexpr (Width <= 128) {
    if (rule.is_plain()) return body(std::bool_constant<false>{});
  }
  body(std::bool_constant<true>{});
}

// A thread's share of the sums of a warp: 16 rows of 8 * Count columns.
template <int Count>
struct SumsRow {
  MmaSums at[Count];
};

// sums(16 rows, n) += a(16 rows, k) b(k, n) over Depth: `a` is a function of the depth and the
// thread; `b2` is a function of the depth, the first of 16 columns and the thread.
template <int Count, int Depth, typename Block, typename Sums, typename A, typename B>
TERRACE_KERNEL void multiply_row(Block& block, Sums& sums, const A& a, const B& b2) {
  static_assert(Count % 2 == 0);
  TERRACE_UNROLL
  for (int k = 0; k < Depth; k += 16) {
    typename Block::template PerThread<decltype(a(0, 0))> left;
    block.for_each_thread([&](int t) { left[t] = a(k, t); });
    TERRACE_UNROLL
    for (int n = 0; n < Count; n += 2) {
      block.multiply2([&](int t) -> MmaSums& { return sums[t].at[n]; },
                      [&](int t) -> MmaSums& { return sums[t].at[n + 1]; },
                      [&](int t) { return left[t]; }, [&](int t) { return b2(k, n * 8, t); });
    }
  }
}

// Rows of a head from `first` on.
template <typename T>
struct RowsOfHead {
  T* head;
  std::int64_t first;
  const HeadRows& rows;
};

// Stores the rows of a thread's sums, multiplied by factor(half) and rounded, a pair of columns at
// a time.
template <int Width, typename T, typename Sums, typename Factor>
TERRACE_KERNEL void store_rows(const Sums& sums, int t, const RowsOfHead<T>& target,
                               const Factor& factor) {
  const HeadRows& rows = target.rows;
  TERRACE_UNROLL
  for (int half = 0; half < 2; ++half) {
    const std::int64_t r = target.first + t / 32 * 16 + mma_row(t, 2 * half);
    if (r >= rows.T) continue;
    const float by = factor(half);
    T* const to = target.head + r * rows.stride;
    TERRACE_UNROLL
    for (int n = 0; n < Width / 8; ++n) {
      const int d = n * 8 + mma_pair(t);
      const auto pair =
          round_pair<T>(sums.at[n].at[2 * half] * by, sums.at[n].at[2 * half + 1] * by);
      if (rows.aligned && d + 1 < rows.D) {
        *reinterpret_cast<Pair<T>*>(to + d) = pair;
      } else {
        if (d < rows.D) to[d] = pair.x;
        if (d + 1 < rows.D) to[d + 1] = pair.y;
      }
    }
  }
}

}  // namespace terrace::shared
