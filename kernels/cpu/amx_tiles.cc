#include "kernels/cpu/amx_tiles.h"

#include "base/check.h"
#include "base/half.h"
#include "kernels/cpu/pair_strips.h"

#if defined(__x86_64__)
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>

// GCC 12 mistakes the "undefined" vectors inside its own header for an error of the caller.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

// Marks the functions that are compiled for these instructions. The rest of the program must run
// without AMX and AVX-512.
#define TERRACE_AMX __attribute__((target("amx-tile,amx-bf16,avx512f,avx512bw,avx512vl")))
#define TERRACE_AMX_INLINE TERRACE_AMX __attribute__((always_inline)) inline

namespace terrace {
namespace {

// Rows of a tile, and 32-bit words of its rows: each a pair of bf16 or one fp32.
constexpr std::int64_t kTileRows = 16;
constexpr std::int64_t kTileWords = kTileRows * 16;
constexpr std::int64_t kTileHalves = 2 * kTileWords;
static_assert(kStepElements == 2 * kTileHalves);

// Steps of the depth that are multiplied before the sums go back to memory: two strips of this
// depth, 16 KiB each, and the sums then fit the first-level cache.
constexpr std::int64_t kDepthSteps = 8;

// The configuration of the tile registers: all eight have 16 rows of 64 bytes.
struct alignas(64) TileShapes {
  std::uint8_t palette = 1;
  std::uint8_t start_row = 0;
  std::array<std::uint8_t, 14> reserved{};
  std::array<std::uint16_t, 16> row_bytes{64, 64, 64, 64, 64, 64, 64, 64};
  std::array<std::uint8_t, 16> rows{16, 16, 16, 16, 16, 16, 16, 16};
};

// Prefetches the strips that are multiplied next into the second-level cache, some lines at each
// step.
struct Prefetch {
  const char* next = nullptr;
  const char* end = nullptr;
};

TERRACE_AMX_INLINE void prefetch_lines(Prefetch& prefetch) {
  constexpr std::int64_t kLines = 8;
  if (prefetch.next == prefetch.end) return;
  for (std::int64_t i = 0; i < kLines; ++i) _mm_prefetch(prefetch.next + 64 * i, _MM_HINT_T1);
  prefetch.next += 64 * kLines;
}

// sums[32,32] = (or +=) left right over some steps. Registers 0 to 3 hold the sums, 4 and 5 tiles
// of the left operand, 6 and 7 of the right one.
template <bool First>
TERRACE_AMX_INLINE void multiply_strips(const Bf16* left, const Bf16* right, std::int64_t steps,
                                        float* sums, Prefetch& prefetch) {
  if constexpr (First) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  } else {
    _tile_loadd(0, sums, 64);
    _tile_loadd(1, sums + kTileWords, 64);
    _tile_loadd(2, sums + 2 * kTileWords, 64);
    _tile_loadd(3, sums + 3 * kTileWords, 64);
  }
  for (std::int64_t step = 0; step < steps; ++step) {
    _tile_loadd(4, left, 64);
    _tile_loadd(6, right, 64);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, right + kTileHalves, 64);
    _tile_dpbf16ps(1, 4, 7);
    _tile_loadd(5, left + kTileHalves, 64);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
    prefetch_lines(prefetch);
    left += kStepElements;
    right += kStepElements;
  }
  _tile_stored(0, sums, 64);
  _tile_stored(1, sums + kTileWords, 64);
  _tile_stored(2, sums + 2 * kTileWords, 64);
  _tile_stored(3, sums + 3 * kTileWords, 64);
}

// While the squares are multiplied, the strips' elements at the next depth are prefetched, strip by
// strip.
template <bool First>
TERRACE_AMX void multiply_depth(const PackedProduct& product, std::int64_t first_step,
                                std::int64_t steps) {
  const auto* all_left = reinterpret_cast<const Bf16*>(product.left);
  const auto* all_right = reinterpret_cast<const Bf16*>(product.right);
  const std::int64_t offset = first_step * kStepElements;
  const std::int64_t next_steps =
      std::min(kDepthSteps, strips_of(product.depth) - first_step - steps);
  const std::int64_t fetched = std::max<std::int64_t>(0, next_steps) * kStepElements;
  const std::int64_t total = product.left_strips + product.right_strips;
  std::int64_t fetch = 0;
  float* sums = product.tiles;
  Prefetch prefetch;
  for (std::int64_t column = 0; column < product.right_strips; ++column) {
    const Bf16* right = all_right + column * product.right_stride + offset;
    for (std::int64_t row = 0; row < product.left_strips; ++row, sums += kStrip * kStrip) {
      const Bf16* left = all_left + row * product.left_stride + offset;
      if (prefetch.next == prefetch.end && fetch < total) {
        const Bf16* source = fetch < product.left_strips
                                 ? all_left + fetch * product.left_stride
                                 : all_right + (fetch - product.left_strips) * product.right_stride;
        source += offset + steps * kStepElements;
        prefetch = {reinterpret_cast<const char*>(source),
                    reinterpret_cast<const char*>(source + fetched)};
        ++fetch;
      }
      multiply_strips<First>(left, right, steps, sums, prefetch);
    }
  }
}

TERRACE_AMX void multiply_all(const PackedProduct& product) {
  const TileShapes shapes;
  _tile_loadconfig(&shapes);
  const std::int64_t steps = strips_of(product.depth);
  for (std::int64_t first = 0; first < steps; first += kDepthSteps) {
    const std::int64_t count = std::min(kDepthSteps, steps - first);
    if (first == 0 && !product.accumulate) {
      multiply_depth<true>(product, first, count);
    } else {
      multiply_depth<false>(product, first, count);
    }
  }
  _tile_release();
}

bool ask_for_tiles() {
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
      !__builtin_cpu_supports("avx512vl")) {
    return false;
  }
  constexpr unsigned kAmxBf16 = 1U << 22;
  constexpr unsigned kAmxTile = 1U << 24;
  unsigned a = 7, b = 0, c = 0, d = 0;
  __asm__ volatile("cpuid" : "+a"(a), "=b"(b), "+c"(c), "=d"(d));
  if ((d & kAmxBf16) == 0 || (d & kAmxTile) == 0) return false;
  // Linux allocates the state of the tile registers, 8 KiB a thread, only for processes that ask
  // for it.
  constexpr long kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr long kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

}  // namespace

bool amx_usable() {
  static const bool kUsable = ask_for_tiles();
  return kUsable;
}

const StripCode& amx_strips() {
  static constexpr StripCode kCode = {.packed = DType::kBF16,
                                      .pack_left = pack_pairs_left,
                                      .pack_right = pack_pairs_right,
                                      .multiply = multiply_all};
  return kCode;
}

}  // namespace terrace

#else

namespace terrace {

bool amx_usable() { return false; }
const StripCode& amx_strips() {
  TERRACE_CHECK(false);
  __builtin_unreachable();
}

}  // namespace terrace

#endif
