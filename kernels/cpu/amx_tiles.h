#pragma once

#include <cstdint>

#include "base/half.h"

// bf16 matrix products in the tile registers of AMX, on operands that were packed for them. Each
// function runs on the calling thread alone and allocates nothing. A sum runs over the depth in
// order, in fp32, so the bits of an element depend on its row, its column and the depth alone.
namespace terrace {

// Whether the processor has tile registers for bf16 and the system lets this process use them; the
// first call asks for leave. The functions below may be called only if so.
bool amx_usable();

// Operands are packed in strips of kStrip rows of the left operand or columns of the right one.
// Along the depth a strip is a sequence of steps of kStrip, each two tiles of 1 KiB in the form
// that the multiplication loads; what lies past the operand's edge is zero.
inline constexpr std::int64_t kStrip = 32;

inline constexpr std::int64_t strips_of(std::int64_t extent) {
  return (extent + kStrip - 1) / kStrip;
}
// Elements of one packed strip.
inline constexpr std::int64_t strip_elements(std::int64_t depth) {
  return strips_of(depth) * kStrip * kStrip;
}

// One strip of a row-major matrix: `width` (at most kStrip) rows or columns of it by `depth`.
struct PackStrip {
  const Bf16* source = nullptr;  // the strip's first element
  std::int64_t stride = 0;       // elements from one stored row to the next
  std::int64_t width = 0, depth = 0;
  bool depth_contiguous = false;  // a stored row runs along the depth
  Bf16* target = nullptr;         // 64-aligned, strip_elements(depth)
};
void pack_left_strip(const PackStrip& strip);
void pack_right_strip(const PackStrip& strip);

// The product of some strips of a left and of a right operand, as fp32 tiles: for each right strip
// and in it each left strip a square of kStrip x kStrip, stored as four tiles of 16 x 16, row by
// row of tiles.
struct PackedProduct {
  const Bf16* left = nullptr;
  const Bf16* right = nullptr;
  std::int64_t left_strips = 0, right_strips = 0, depth = 0;
  float* tiles = nullptr;  // 64-aligned, left_strips * right_strips * kStrip * kStrip
};
void multiply_packed(const PackedProduct& product);

}  // namespace terrace
