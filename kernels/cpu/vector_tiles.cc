#include "kernels/cpu/vector_tiles.h"

#include <algorithm>

#include "base/check.h"
#include "base/half.h"
#include "kernels/cpu/highway_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/vector_tiles.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/cpu_vector.inl"

HWY_BEFORE_NAMESPACE();
namespace terrace {
namespace HWY_NAMESPACE {

// Rows of sums that are in registers at once. Each row has three vectors of columns where there are
// enough registers, for the fewest loads, else two.
constexpr std::int64_t kPanelRows = kLanes == 16 ? 8 : 4;
constexpr std::int64_t kWide = kLanes == 16 ? 3 : 2;
constexpr std::int64_t kNarrow = 2;
static_assert(kStrip % kPanelRows == 0 && kStrip % (kNarrow * kLanes) == 0);
// Depth that is multiplied before the sums go back to memory: the right columns of this depth, 24
// KiB, stay in the first-level cache beside the left rows, whose steps are 4 KiB apart and so share
// sets.
constexpr std::int64_t kDepth = 128;

// Elements from row to row of a transposed square, chosen so that a column's elements are in
// different sets of the cache.
constexpr std::int64_t kSquareStride = kStrip + 1;

// The rows and columns that a square covers in a matrix, from `data` on.
template <typename T>
struct SquareSource {
  const T* data;
  std::int64_t stride, rows, columns;
};

// Writes kStrip x kStrip elements; elements that the source does not have are 0.
template <typename T>
HWY_INLINE void load_square(const SquareSource<T>& source, float* target,
                            std::int64_t target_stride) {
  for (std::int64_t r = 0; r < kStrip; ++r) {
    float* out = target + r * target_stride;
    const T* const row = source.data + r * source.stride;
    for (std::int64_t c = 0; c < kStrip; c += kLanes) {
      const std::int64_t count =
          r < source.rows ? std::max<std::int64_t>(0, source.columns - c) : 0;
      store(count == 0 ? splat(0.0F) : load_n(row + c, count), out + c);
    }
  }
}

HWY_INLINE void transpose_square(const float* square, float* target) {
  const hn::RebindToSigned<Lanes> indices;
  const auto down = hn::Mul(hn::Iota(indices, 0), hn::Set(indices, kSquareStride));
  for (std::int64_t c = 0; c < kStrip; ++c) {
    for (std::int64_t r = 0; r < kStrip; r += kLanes) {
      store(hn::GatherIndex(Lanes(), square + r * kSquareStride + c, down),
            target + c * kStrip + r);
    }
  }
}

template <bool Left, typename T>
void pack_strip_of(const PackStrip& strip) {
  // Rows of a step run along the depth in a left strip and across it in a right one.
  const bool transposed = strip.depth_contiguous != Left;
  const T* source = reinterpret_cast<const T*>(strip.source);
  float* target = reinterpret_cast<float*>(strip.target);
  for (std::int64_t begin = 0; begin < strip.depth; begin += kStrip, target += kStepElements) {
    const std::int64_t left = strip.depth - begin;
    const std::int64_t rows = strip.depth_contiguous ? strip.width : left;
    const std::int64_t columns = strip.depth_contiguous ? left : strip.width;
    const T* first = source + begin * (strip.depth_contiguous ? 1 : strip.stride);
    const SquareSource<T> part = {first, strip.stride, rows, columns};
    if (!transposed) {
      load_square(part, target, kStrip);
      continue;
    }
    alignas(64) float square[kStrip * kSquareStride];
    load_square(part, square, kSquareStride);
    transpose_square(square, target);
  }
}

void pack_left(const PackStrip& strip) {
  if (strip.type == DType::kF32) return pack_strip_of<true, float>(strip);
  pack_strip_of<true, Bf16>(strip);
}

void pack_right(const PackStrip& strip) {
  if (strip.type == DType::kF32) return pack_strip_of<false, float>(strip);
  pack_strip_of<false, Bf16>(strip);
}

// Where the vectors of columns of a panel lie: in the right operand, and in the sums.
template <std::int64_t Vectors>
struct Columns {
  const float* right[Vectors];
  float* sums[Vectors];
};

// Computes a panel of kPanelRows by Vectors * kLanes sums = (or +=) left right over a part of the
// depth.
template <bool First, std::int64_t Vectors>
HWY_INLINE void multiply_panel(const float* left, const Columns<Vectors>& columns, std::int64_t row,
                               std::int64_t depth) {
  Vec sums[Vectors][kPanelRows];
#pragma GCC unroll 3
  for (std::int64_t v = 0; v < Vectors; ++v) {
#pragma GCC unroll 8
    for (std::int64_t r = 0; r < kPanelRows; ++r) {
      sums[v][r] = First ? hn::Zero(Lanes()) : load(columns.sums[v] + row + r * 16);
    }
  }
  std::int64_t at = 0;
  for (std::int64_t step = 0; step < depth; step += kStrip, left += kStepElements) {
    const std::int64_t count = std::min(kStrip, depth - step);
    for (std::int64_t k = 0; k < count; ++k, at += kStrip) {
      Vec right[Vectors];
#pragma GCC unroll 3
      for (std::int64_t v = 0; v < Vectors; ++v) right[v] = load(columns.right[v] + at);
#pragma GCC unroll 8
      for (std::int64_t r = 0; r < kPanelRows; ++r) {
        const Vec factor = splat(left[r * kStrip + k]);
#pragma GCC unroll 3
        for (std::int64_t v = 0; v < Vectors; ++v) {
          sums[v][r] = hn::MulAdd(factor, right[v], sums[v][r]);
        }
      }
    }
  }
#pragma GCC unroll 3
  for (std::int64_t v = 0; v < Vectors; ++v) {
#pragma GCC unroll 8
    for (std::int64_t r = 0; r < kPanelRows; ++r) {
      store(sums[v][r], columns.sums[v] + row + r * 16);
    }
  }
}

// Multiplies vectors of columns from `column` on with all left strips, over a part of the depth.
template <bool First, std::int64_t Vectors>
void multiply_columns(const PackedProduct& product, std::int64_t column, std::int64_t begin,
                      std::int64_t depth) {
  Columns<Vectors> columns;
  for (std::int64_t v = 0; v < Vectors; ++v) {
    const std::int64_t strip = (column + v * kLanes) / kStrip;
    const std::int64_t within = (column + v * kLanes) % kStrip;
    columns.right[v] = reinterpret_cast<const float*>(product.right) +
                       strip * product.right_stride + begin * kStrip + within;
    columns.sums[v] =
        product.tiles + strip * product.left_strips * kStepElements + square_at(0, within);
  }
  const float* left = reinterpret_cast<const float*>(product.left) + begin * kStrip;
  for (std::int64_t strip = 0; strip < product.left_strips; ++strip) {
    for (std::int64_t r = 0; r < kStrip; r += kPanelRows) {
      multiply_panel<First, Vectors>(left + r * kStrip, columns,
                                     strip * kStepElements + square_at(r, 0), depth);
    }
    left += product.left_stride;
  }
}

template <bool First>
void multiply_depth(const PackedProduct& product, std::int64_t begin, std::int64_t depth) {
  const std::int64_t end = product.right_strips * kStrip;
  std::int64_t column = 0;
  for (; column + kWide * kLanes <= end; column += kWide * kLanes) {
    multiply_columns<First, kWide>(product, column, begin, depth);
  }
  for (; column + kNarrow * kLanes <= end; column += kNarrow * kLanes) {
    multiply_columns<First, kNarrow>(product, column, begin, depth);
  }
  for (; column < end; column += kLanes) {
    multiply_columns<First, 1>(product, column, begin, depth);
  }
}

void multiply(const PackedProduct& product) {
  for (std::int64_t begin = 0; begin < product.depth; begin += kDepth) {
    const std::int64_t depth = std::min(kDepth, product.depth - begin);
    if (begin == 0 && !product.accumulate) {
      multiply_depth<true>(product, begin, depth);
    } else {
      multiply_depth<false>(product, begin, depth);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace terrace
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace terrace {

HWY_EXPORT(pack_left);
HWY_EXPORT(pack_right);
HWY_EXPORT(multiply);

const StripCode& vector_strips() {
  static constexpr StripCode kCode = {
      .packed = DType::kF32,
      .pack_left = [](const PackStrip& strip) { HWY_DYNAMIC_DISPATCH(pack_left)(strip); },
      .pack_right = [](const PackStrip& strip) { HWY_DYNAMIC_DISPATCH(pack_right)(strip); },
      .multiply = [](const PackedProduct& product) { HWY_DYNAMIC_DISPATCH(multiply)(product); }};
  return kCode;
}

}  // namespace terrace
#endif  // HWY_ONCE
