#include "kernels/cpu/pair_strips.h"

#include "base/check.h"
#include "base/half.h"

#if defined(__x86_64__)
#include <immintrin.h>

// GCC 12 mistakes the "undefined" vectors inside its own header for an error of the caller.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

// Marks the functions that are compiled for these instructions. The rest of the program must run
// without AVX-512.
#define TERRACE_AVX512 __attribute__((target("avx512f,avx512bw,avx512vl")))
#define TERRACE_AVX512_INLINE TERRACE_AVX512 __attribute__((always_inline)) inline

namespace terrace {
namespace {

// Rows of a tile, and 32-bit words of its rows: each a pair of bf16 or one fp32.
constexpr std::int64_t kPairTileRows = 16;
constexpr std::int64_t kPairTileWords = kPairTileRows * 16;
constexpr std::int64_t kPairTileHalves = 2 * kPairTileWords;
static_assert(kStepElements == 2 * kPairTileHalves);

// A strip and a typed pointer to its elements.
struct HalfStrip {
  explicit HalfStrip(const PackStrip& strip)
      : source(reinterpret_cast<const Bf16*>(strip.source)),
        stride(strip.stride),
        width(strip.width),
        depth(strip.depth) {}
  const Bf16* source;
  std::int64_t stride, width, depth;
};

// Sixteen rows of sixteen 32-bit words.
struct Words {
  __m512i row[16];
};

// Transposes 4 x 4 words within the quarters of four rows.
TERRACE_AVX512_INLINE void transpose_quarters(const __m512i* rows, __m512i* out) {
  const __m512i ab_low = _mm512_unpacklo_epi32(rows[0], rows[1]);
  const __m512i ab_high = _mm512_unpackhi_epi32(rows[0], rows[1]);
  const __m512i cd_low = _mm512_unpacklo_epi32(rows[2], rows[3]);
  const __m512i cd_high = _mm512_unpackhi_epi32(rows[2], rows[3]);
  out[0] = _mm512_unpacklo_epi64(ab_low, cd_low);
  out[1] = _mm512_unpackhi_epi64(ab_low, cd_low);
  out[2] = _mm512_unpacklo_epi64(ab_high, cd_high);
  out[3] = _mm512_unpackhi_epi64(ab_high, cd_high);
}

TERRACE_AVX512_INLINE void transpose(Words& words) {
  Words parts;
  for (int i = 0; i < 16; i += 4) transpose_quarters(&words.row[i], &parts.row[i]);
  // parts.row[4 j + i] holds in quarter q the words 4 j .. 4 j + 3 of column 4 q + i.
  for (int i = 0; i < 4; ++i) {
    const __m512i low01 = _mm512_shuffle_i32x4(parts.row[i], parts.row[4 + i], 0x44);
    const __m512i high01 = _mm512_shuffle_i32x4(parts.row[i], parts.row[4 + i], 0xee);
    const __m512i low23 = _mm512_shuffle_i32x4(parts.row[8 + i], parts.row[12 + i], 0x44);
    const __m512i high23 = _mm512_shuffle_i32x4(parts.row[8 + i], parts.row[12 + i], 0xee);
    words.row[i] = _mm512_shuffle_i32x4(low01, low23, 0x88);
    words.row[4 + i] = _mm512_shuffle_i32x4(low01, low23, 0xdd);
    words.row[8 + i] = _mm512_shuffle_i32x4(high01, high23, 0x88);
    words.row[12 + i] = _mm512_shuffle_i32x4(high01, high23, 0xdd);
  }
}

TERRACE_AVX512_INLINE void store_tile(const Words& words, Bf16* target) {
  for (int i = 0; i < 16; ++i) _mm512_store_si512(target + 32 * i, words.row[i]);
}

TERRACE_AVX512_INLINE __mmask32 first_lanes(std::int64_t count) {
  if (count >= 32) return ~__mmask32{0};
  return count <= 0 ? __mmask32{0} : (__mmask32{1} << count) - 1;
}

// Loads rows [first, first + 16) of one step of a strip whose stored rows run along the depth.
TERRACE_AVX512_INLINE Words load_rows(const HalfStrip& strip, std::int64_t first,
                                      std::int64_t begin) {
  Words words;
  const __mmask32 lanes = first_lanes(strip.depth - begin);
  for (std::int64_t i = 0; i < 16; ++i) {
    const std::int64_t row = first + i;
    const Bf16* source = strip.source + row * strip.stride + begin;
    words.row[i] =
        row < strip.width ? _mm512_maskz_loadu_epi16(lanes, source) : _mm512_setzero_si512();
    // The next strip is usually packed next. Where there is none, a prefetch does nothing.
    _mm_prefetch(reinterpret_cast<const char*>(source + kStrip * strip.stride), _MM_HINT_T0);
  }
  return words;
}

// Loads the same step of a strip whose stored rows run across it: word i of row p is the pair of
// depths (2 p, 2 p + 1) at column i; columns 0 to 15 in `low`, 16 to 31 in `high`.
TERRACE_AVX512_INLINE void load_pairs(const HalfStrip& strip, std::int64_t begin, Words& low,
                                      Words& high) {
  const __m512i pair = _mm512_set1_epi32(0x00200000);  // lane i of the first, then of the second
  const __m512i ramp = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
  const __m512i low_lanes =
      _mm512_add_epi32(pair, _mm512_or_si512(ramp, _mm512_slli_epi32(ramp, 16)));
  const __m512i high_lanes = _mm512_add_epi32(low_lanes, _mm512_set1_epi32(0x00100010));
  const __mmask32 lanes = first_lanes(strip.width);
  const Bf16* row = strip.source + begin * strip.stride;
  for (std::int64_t i = 0; i < 16; ++i, row += 2 * strip.stride) {
    const std::int64_t left = strip.depth - begin - 2 * i;
    const __m512i even = left > 0 ? _mm512_maskz_loadu_epi16(lanes, row) : _mm512_setzero_si512();
    const __m512i odd =
        left > 1 ? _mm512_maskz_loadu_epi16(lanes, row + strip.stride) : _mm512_setzero_si512();
    low.row[i] = _mm512_permutex2var_epi16(even, low_lanes, odd);
    high.row[i] = _mm512_permutex2var_epi16(even, high_lanes, odd);
  }
}

template <bool Left>
TERRACE_AVX512 void pack_strip(const PackStrip& whole) {
  TERRACE_CHECK(whole.type == DType::kBF16);
  const HalfStrip strip(whole);
  // A tile of the left operand has a row for each row, and a tile of the right operand has a row
  // for each pair of depths. Stored rows may be either, so one of the two forms is transposed.
  const bool transposed = whole.depth_contiguous != Left;
  Bf16* target = reinterpret_cast<Bf16*>(whole.target);
  for (std::int64_t begin = 0; begin < strip.depth; begin += kStrip, target += kStepElements) {
    Words low, high;
    if (whole.depth_contiguous) {
      low = load_rows(strip, 0, begin);
      high = load_rows(strip, kPairTileRows, begin);
    } else {
      load_pairs(strip, begin, low, high);
    }
    if (transposed) {
      transpose(low);
      transpose(high);
    }
    store_tile(low, target);
    store_tile(high, target + kPairTileHalves);
  }
}

}  // namespace

void pack_pairs_left(const PackStrip& strip) { pack_strip<true>(strip); }
void pack_pairs_right(const PackStrip& strip) { pack_strip<false>(strip); }

}  // namespace terrace

#else

namespace terrace {

void pack_pairs_left(const PackStrip&) { TERRACE_CHECK(false); }
void pack_pairs_right(const PackStrip&) { TERRACE_CHECK(false); }

}  // namespace terrace

#endif
