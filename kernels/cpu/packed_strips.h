#pragma once

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"

// The building blocks of our own matrix products: operands packed in strips, and the code that
// packs and multiplies them.
namespace terrace {

// Operands are packed in strips of kStrip rows of the left operand or columns of the right one.
// Along the depth a strip is a sequence of steps of kStrip, each of kStrip x kStrip elements. A
// step of a left strip is row-major: depth runs fastest. Each code has its own form for a step of a
// right strip. Elements past the operand's edge are zero.
inline constexpr std::int64_t kStrip = 32;
inline constexpr std::int64_t kStepElements = kStrip * kStrip;

inline constexpr std::int64_t strips_of(std::int64_t extent) {
  return (extent + kStrip - 1) / kStrip;
}
// Returns the elements of one packed strip.
inline constexpr std::int64_t strip_elements(std::int64_t depth) {
  return strips_of(depth) * kStepElements;
}

// One strip of a row-major matrix: `width` (at most kStrip) rows or columns of it by `depth`.
struct PackStrip {
  const std::byte* source = nullptr;  // the strip's first element
  DType type = DType::kBF16;          // of the source
  std::int64_t stride = 0;            // elements from one stored row to the next
  std::int64_t width = 0, depth = 0;
  bool depth_contiguous = false;  // a stored row runs along the depth
  std::byte* target = nullptr;    // 64-aligned, strip_elements(depth) of the packed type
};

// The product of some strips of a left and of a right operand, as fp32 tiles: for each right strip,
// and within it for each left strip, there is a square of kStrip x kStrip, stored as four tiles of
// 16 x 16, row by row of tiles.
struct PackedProduct {
  const std::byte* left = nullptr;
  const std::byte* right = nullptr;
  std::int64_t left_strips = 0, right_strips = 0;
  std::int64_t depth = 0;
  // Elements from one strip to the next, at least strip_elements(depth).
  std::int64_t left_stride = 0, right_stride = 0;
  bool accumulate = false;  // adds the product to the tiles instead of replacing them
  float* tiles = nullptr;   // 64-aligned, left_strips * right_strips * kStepElements
};

// Returns the index in a square of the element at (row, column).
inline constexpr std::int64_t square_at(std::int64_t row, std::int64_t column) {
  return (row / 16 * 2 + column / 16) * 256 + row % 16 * 16 + column % 16;
}

// One way to multiply. Each function runs on the calling thread alone and allocates nothing. A sum
// runs over the depth in order, in fp32, so the bits of an element depend on its row, its column
// and the depth alone.
struct StripCode {
  DType packed = DType::kBF16;  // type of packed elements
  void (*pack_left)(const PackStrip&) = nullptr;
  void (*pack_right)(const PackStrip&) = nullptr;
  void (*multiply)(const PackedProduct&) = nullptr;

  std::int64_t bytes(std::int64_t elements) const {
    return elements * static_cast<std::int64_t>(size_of(packed));
  }
};

}  // namespace terrace
