#include "kernels/cpu/pair_products.h"

#include "base/check.h"

#if defined(__x86_64__)
#include <immintrin.h>

#include <algorithm>
#include <cstring>

#include "kernels/cpu/onednn_gemm.h"
#include "kernels/cpu/pair_strips.h"

// Marks the functions that are compiled for these instructions. The rest of the program must run
// without AVX-512.
#define TERRACE_PAIRS __attribute__((target("avx512f,avx512bw,avx512vl,avx512bf16")))
#define TERRACE_PAIRS_INLINE TERRACE_PAIRS __attribute__((always_inline)) inline

namespace terrace {
namespace {

// Counts of words; a word is a pair of bf16 of two neighbouring depths.
constexpr std::int64_t kStepPairs = kStrip / 2;         // of a step's depth
constexpr std::int64_t kStepWords = kStepElements / 2;  // of a step
constexpr std::int64_t kRightTileWords = 16 * 16;       // of a tile of a right strip's step
constexpr std::int64_t kSquareTile = 16 * 16;           // sums of a tile of a square
// Rows of sums that are in registers at once, and the vectors of 16 columns in each row: they take
// 24 of the 32 registers, and the operands take others.
constexpr std::int64_t kPanelRows = 8;
constexpr std::int64_t kWide = 3;
// Steps of the depth that are multiplied before the sums go back to memory: the right columns of
// these steps, 24 KiB, stay in the first-level cache beside the left rows.
constexpr std::int64_t kDepthSteps = 8;

// Where the vectors of columns of a panel lie: in the right operand, and in the sums of a strip of
// rows.
template <std::int64_t Vectors>
struct Columns {
  const std::uint32_t* right[Vectors];
  float* sums[Vectors];
};

TERRACE_PAIRS_INLINE __m512bh all_lanes(const std::uint32_t* word) {
  return reinterpret_cast<__m512bh>(_mm512_set1_epi32(static_cast<int>(*word)));
}

// Computes a panel of kPanelRows by Vectors * 16 sums = (or +=) left right over some steps of the
// depth.
template <bool First, std::int64_t Vectors>
TERRACE_PAIRS_INLINE void multiply_panel(const std::uint32_t* left, const Columns<Vectors>& columns,
                                         std::int64_t offset, std::int64_t steps) {
  __m512 sums[Vectors][kPanelRows];
#pragma GCC unroll 3
  for (std::int64_t v = 0; v < Vectors; ++v) {
#pragma GCC unroll 8
    for (std::int64_t r = 0; r < kPanelRows; ++r) {
      sums[v][r] = First ? _mm512_setzero_ps() : _mm512_load_ps(columns.sums[v] + offset + r * 16);
    }
  }
  for (std::int64_t step = 0; step < steps; ++step, left += kStepWords) {
    const std::int64_t at = step * kStepWords;
#pragma GCC unroll 2
    for (std::int64_t pair = 0; pair < kStepPairs; ++pair) {
      __m512bh right[Vectors];
#pragma GCC unroll 3
      for (std::int64_t v = 0; v < Vectors; ++v) {
        right[v] = reinterpret_cast<__m512bh>(_mm512_load_si512(columns.right[v] + at + pair * 16));
      }
#pragma GCC unroll 8
      for (std::int64_t r = 0; r < kPanelRows; ++r) {
        const __m512bh factor = all_lanes(left + r * kStepPairs + pair);
#pragma GCC unroll 3
        for (std::int64_t v = 0; v < Vectors; ++v) {
          sums[v][r] = _mm512_dpbf16_ps(sums[v][r], right[v], factor);
        }
      }
    }
  }
#pragma GCC unroll 3
  for (std::int64_t v = 0; v < Vectors; ++v) {
#pragma GCC unroll 8
    for (std::int64_t r = 0; r < kPanelRows; ++r) {
      _mm512_store_ps(columns.sums[v] + offset + r * 16, sums[v][r]);
    }
  }
}

// Multiplies vectors of columns from vector `first` on with all left strips, over some steps of the
// depth.
template <bool First, std::int64_t Vectors>
TERRACE_PAIRS void multiply_columns(const PackedProduct& product, std::int64_t first,
                                    std::int64_t first_step, std::int64_t steps) {
  const auto* const all_left = reinterpret_cast<const std::uint32_t*>(product.left);
  const auto* const all_right = reinterpret_cast<const std::uint32_t*>(product.right);
  Columns<Vectors> columns;
  for (std::int64_t v = 0; v < Vectors; ++v) {
    const std::int64_t strip = (first + v) / 2;
    const std::int64_t half = (first + v) % 2;
    columns.right[v] = all_right + strip * product.right_stride / 2 + first_step * kStepWords +
                       half * kRightTileWords;
    columns.sums[v] =
        product.tiles + strip * product.left_strips * kStepElements + half * kSquareTile;
  }
  for (std::int64_t strip = 0; strip < product.left_strips; ++strip) {
    const std::uint32_t* const left =
        all_left + strip * product.left_stride / 2 + first_step * kStepWords;
    for (std::int64_t r = 0; r < kStrip; r += kPanelRows) {
      multiply_panel<First, Vectors>(left + r * kStepPairs, columns,
                                     strip * kStepElements + square_at(r, 0), steps);
    }
  }
}

template <bool First>
TERRACE_PAIRS void multiply_steps(const PackedProduct& product, std::int64_t first_step,
                                  std::int64_t steps) {
  const std::int64_t vectors = product.right_strips * 2;
  std::int64_t first = 0;
  for (; first + kWide <= vectors; first += kWide) {
    multiply_columns<First, kWide>(product, first, first_step, steps);
  }
  for (; first + 2 <= vectors; first += 2) {
    multiply_columns<First, 2>(product, first, first_step, steps);
  }
  for (; first < vectors; ++first) multiply_columns<First, 1>(product, first, first_step, steps);
}

TERRACE_PAIRS void multiply_all_pairs(const PackedProduct& product) {
  const std::int64_t steps = strips_of(product.depth);
  for (std::int64_t first = 0; first < steps; first += kDepthSteps) {
    const std::int64_t count = std::min(kDepthSteps, steps - first);
    if (first == 0 && !product.accumulate) {
      multiply_steps<true>(product, first, count);
    } else {
      multiply_steps<false>(product, first, count);
    }
  }
}

bool has_the_instruction() {
  __builtin_cpu_init();
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bf16");
}

}  // namespace

bool pair_products_usable() {
  static const bool kUsable = has_the_instruction() && onednn_multiplies_pairs();
  return kUsable;
}

const StripCode& pair_strips() {
  static constexpr StripCode kCode = {.packed = DType::kBF16,
                                      .pack_left = pack_pairs_left,
                                      .pack_right = pack_pairs_right,
                                      .multiply = multiply_all_pairs};
  return kCode;
}

}  // namespace terrace

#else

namespace terrace {

bool pair_products_usable() { return false; }
const StripCode& pair_strips() {
  TERRACE_CHECK(false);
  __builtin_unreachable();
}

}  // namespace terrace

#endif
