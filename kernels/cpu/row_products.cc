#include "kernels/cpu/row_products.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "kernels/cpu/highway_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/row_products.cc"
#include "hwy/foreach_target.h"

// After foreach_target.h, which compiles this file once per instruction set.
#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "kernels/cpu/cpu_vector.inl"

HWY_BEFORE_NAMESPACE();
namespace terrace {
namespace HWY_NAMESPACE {

// Sums that are in registers at once: kRowsAtOnce rows of a by kOthersAtOnce rows of b.
constexpr std::int64_t kRowsAtOnce = 4;
constexpr std::int64_t kOthersAtOnce = kLanes == 16 ? 4 : 2;
// Vectors of a mix that are in registers at once.
constexpr std::int64_t kMixedAtOnce = 4;

// Loads 2 * kLanes elements from `source` on, two bf16 in each word; `source` need not be aligned.
HWY_INLINE WordVec load_pairs(const Bf16* source) {
#if HWY_TARGET == HWY_SCALAR
  std::uint32_t word = 0;
  std::memcpy(&word, source, sizeof(word));
  return hn::Set(LaneWords(), word);
#else
  const hn::Repartition<std::uint16_t, LaneWords> halves;
  return hn::BitCast(LaneWords(),
                     hn::LoadU(halves, reinterpret_cast<const std::uint16_t*>(source)));
#endif
}

// Elements that are multiplied in one step, in fp32: one vector, or for bf16 two vectors, with the
// even and the odd elements.
template <typename T>
struct DotStep;

template <>
struct DotStep<float> {
  static constexpr std::int64_t kElements = kLanes;
  Vec part[1];
  static HWY_INLINE DotStep of(const float* source) { return {{load(source)}}; }
};

template <>
struct DotStep<Bf16> {
  static constexpr std::int64_t kElements = 2 * kLanes;
  Vec part[2];
  static HWY_INLINE DotStep of(const Bf16* source) {
    const WordVec pairs = load_pairs(source);
    const WordVec odd = hn::And(pairs, hn::Set(LaneWords(), 0xffff0000U));
    return {{hn::BitCast(Lanes(), hn::ShiftLeft<16>(pairs)), hn::BitCast(Lanes(), odd)}};
  }
};

// Returns a step with its first `count` elements and zeros after them.
template <typename T>
HWY_INLINE DotStep<T> dot_step_of_n(const T* source, std::int64_t count) {
  alignas(64) T elements[DotStep<T>::kElements] = {};
  std::copy_n(source, count, elements);
  return DotStep<T>::of(elements);
}

// Multiplies Rows rows of a by Others rows of b. The loops over them are unrolled, so that sums are
// in registers. While a row of b is multiplied, the row that comes Others later is prefetched: rows
// are short, and the processor's own prefetcher begins anew with each.
template <typename T, int Rows, int Others>
HWY_INLINE void dot_block(const RowDots& dots, const T* a, const T* b, float* sums) {
  constexpr std::int64_t kElements = DotStep<T>::kElements;
  constexpr int kParts = static_cast<int>(sizeof(DotStep<T>::part) / sizeof(Vec));
  Vec acc[Rows][Others];
#pragma GCC unroll 4
  for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 4
    for (int c = 0; c < Others; ++c) acc[r][c] = hn::Zero(Lanes());
  }
  // Multiplies the step that `step_of` reads at each row's k.
  const auto add_step = [&](std::int64_t k, const auto& step_of) TERRACE_VECTOR_BODY {
    DotStep<T> left[Rows];
#pragma GCC unroll 4
    for (int r = 0; r < Rows; ++r) left[r] = step_of(a + r * dots.a_stride + k);
#pragma GCC unroll 4
    for (int c = 0; c < Others; ++c) {
      const T* const row = b + c * dots.b_stride + k;
      hwy::Prefetch(row + Others * dots.b_stride);
      const DotStep<T> right = step_of(row);
#pragma GCC unroll 4
      for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 2
        for (int p = 0; p < kParts; ++p) {
          acc[r][c] = hn::MulAdd(left[r].part[p], right.part[p], acc[r][c]);
        }
      }
    }
  };
  std::int64_t k = 0;
  for (; k + kElements <= dots.depth; k += kElements) {
    add_step(k, [](const T* source) TERRACE_VECTOR_BODY { return DotStep<T>::of(source); });
  }
  const std::int64_t rest = dots.depth - k;
  if (rest > 0) {
    add_step(k, [=](const T* source) TERRACE_VECTOR_BODY { return dot_step_of_n(source, rest); });
  }
#pragma GCC unroll 4
  for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 4
    for (int c = 0; c < Others; ++c) {
      sums[r * dots.sums_stride + c] = hn::GetLane(hn::SumOfLanes(Lanes(), acc[r][c]));
    }
  }
}

// Multiplies all rows of a by Others rows of b, which stay in the first-level cache meanwhile.
template <typename T, int Others>
HWY_INLINE void dot_all_rows(const RowDots& dots, std::int64_t other) {
  const T* b = reinterpret_cast<const T*>(dots.b) + other * dots.b_stride;
  for (std::int64_t row = 0; row < dots.a_rows; row += kRowsAtOnce) {
    const T* a = reinterpret_cast<const T*>(dots.a) + row * dots.a_stride;
    float* sums = dots.sums + row * dots.sums_stride + other;
    switch (std::min(kRowsAtOnce, dots.a_rows - row)) {
      case 1:
        dot_block<T, 1, Others>(dots, a, b, sums);
        break;
      case 2:
        dot_block<T, 2, Others>(dots, a, b, sums);
        break;
      case 3:
        dot_block<T, 3, Others>(dots, a, b, sums);
        break;
      default:
        dot_block<T, 4, Others>(dots, a, b, sums);
        break;
    }
  }
}

template <typename T>
void dot_rows_as(const RowDots& dots) {
  std::int64_t other = 0;
  for (; other + kOthersAtOnce <= dots.b_rows; other += kOthersAtOnce) {
    dot_all_rows<T, kOthersAtOnce>(dots, other);
  }
  for (; other < dots.b_rows; ++other) dot_all_rows<T, 1>(dots, other);
}

void dot_rows_any(const RowDots& dots) {
  if (dots.dtype == DType::kF32) return dot_rows_as<float>(dots);
  dot_rows_as<Bf16>(dots);
}

// Computes Vectors vectors of a row of the mix, the last of which has `last` columns.
template <typename T, int Vectors>
HWY_INLINE void mix_block(const RowMix& mix, const float* weights, const T* b, std::int64_t last,
                          float* sums) {
  Vec acc[Vectors];
#pragma GCC unroll 4
  for (int v = 0; v < Vectors; ++v) acc[v] = hn::Zero(Lanes());
  for (std::int64_t j = 0; j < mix.b_rows; ++j, b += mix.b_stride) {
    const Vec weight = splat(weights[j]);
#pragma GCC unroll 4
    for (int v = 0; v + 1 < Vectors; ++v) {
      acc[v] = hn::MulAdd(weight, load(b + v * kLanes), acc[v]);
    }
    constexpr int kLast = Vectors - 1;
    acc[kLast] = hn::MulAdd(weight, load_n(b + kLast * kLanes, last), acc[kLast]);
  }
#pragma GCC unroll 4
  for (int v = 0; v < Vectors; ++v) {
    store_n(acc[v], sums + v * kLanes, v + 1 < Vectors ? kLanes : last);
  }
}

template <typename T>
void mix_rows_as(const RowMix& mix) {
  for (std::int64_t r = 0; r < mix.rows; ++r) {
    const float* weights = mix.weights + r * mix.weights_stride;
    float* sums = mix.sums + r * mix.width;
    const T* b = reinterpret_cast<const T*>(mix.b);
    std::int64_t d = 0;
    for (; d + kMixedAtOnce * kLanes <= mix.width; d += kMixedAtOnce * kLanes) {
      mix_block<T, kMixedAtOnce>(mix, weights, b + d, kLanes, sums + d);
    }
    for (; d < mix.width; d += kLanes) {
      mix_block<T, 1>(mix, weights, b + d, std::min(kLanes, mix.width - d), sums + d);
    }
  }
}

void mix_rows_any(const RowMix& mix) {
  if (mix.dtype == DType::kF32) return mix_rows_as<float>(mix);
  mix_rows_as<Bf16>(mix);
}

}  // namespace HWY_NAMESPACE
}  // namespace terrace
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace terrace {

HWY_EXPORT(dot_rows_any);
HWY_EXPORT(mix_rows_any);

void dot_rows(const RowDots& dots) {
  TERRACE_CHECK(dots.dtype == DType::kF32 || dots.dtype == DType::kBF16);
  HWY_DYNAMIC_DISPATCH(dot_rows_any)(dots);
}

void mix_rows(const RowMix& mix) {
  TERRACE_CHECK(mix.dtype == DType::kF32 || mix.dtype == DType::kBF16);
  HWY_DYNAMIC_DISPATCH(mix_rows_any)(mix);
}

}  // namespace terrace
#endif  // HWY_ONCE
