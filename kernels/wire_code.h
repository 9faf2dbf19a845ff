#pragma once

#include <math.h>

#include <bit>
#include <cstddef>
#include <cstdint>

#include "base/check.h"
#include "base/half.h"
#include "kernels/wire_ops.h"

// The codes of wire_ops.h: the scalar definitions, and where the codes of a block lie. For hosts
// and devices.
namespace terrace {

inline constexpr std::uint32_t kWireNanBits = 0x7fc00000U;   // of a block that is all NaN
inline constexpr std::uint32_t kInfinityBits = 0x7f800000U;  // a NaN's magnitude is above it
inline constexpr int kInt4Offset = 8;  // a code of 4 bits is stored with this added
inline constexpr int kHalfWireBlock = static_cast<int>(kWireBlock / 2);

// Returns the magnitude as bits. Magnitudes that are compared in this form have the order of their
// numbers, and NaN is the largest.
TERRACE_HOST_DEVICE inline std::uint32_t magnitude_bits(float value) {
  return std::bit_cast<std::uint32_t>(value) & 0x7fffffffU;
}

// The factors between the numbers of a block and their codes.
struct WireFactors {
  float scale = 0;    // times a code: the number that it stands for
  float to_code = 0;  // times a number: the code, before it is rounded; 0 if all codes are 0

  TERRACE_HOST_DEVICE bool is_nan() const { return scale != scale; }
};

// Returns the factors of a block, given magnitude_bits() of its largest number.
TERRACE_HOST_DEVICE inline WireFactors wire_factors(WireForm form, std::uint32_t largest_bits) {
  const auto magnitude = std::bit_cast<float>(largest_bits);
  const float code = largest_code(form);
  const float scale = magnitude / code;
  if (magnitude_bits(scale * code) >= kInfinityBits) {
    return {std::bit_cast<float>(kWireNanBits), 0};
  }
  if (magnitude < kLeastWireMagnitude) return {0, 0};
  return {scale, code / magnitude};
}

// Returns the code of a number of the block. The product is at most one unit in the last place
// above the largest code, so no code is larger than that.
TERRACE_HOST_DEVICE inline int wire_code(const WireFactors& factors, float value) {
  return factors.to_code == 0 ? 0 : static_cast<int>(::rintf(value * factors.to_code));
}

TERRACE_HOST_DEVICE inline float wire_number(float scale, int code) {
  return static_cast<float>(code) * scale;
}

// The bytes of one block.
struct WireBlock {
  float* scale;
  std::uint8_t* codes;
};

constexpr std::int64_t wire_code_bytes(WireForm form) {
  return form == WireForm::kInt4 ? kWireBlock / 2 : kWireBlock;
}

// Rows of codes, each with the same number of blocks.
struct WireRows {
  std::byte* data = nullptr;  // null: no codes
  WireForm form = WireForm::kInt8;
  std::int64_t rows = 0;
  std::int64_t row_blocks = 0;

  TERRACE_HOST_DEVICE std::int64_t blocks() const { return rows * row_blocks; }
  TERRACE_HOST_DEVICE WireBlock block(std::int64_t row, std::int64_t at) const {
    const std::int64_t scale_bytes = row_blocks * static_cast<std::int64_t>(sizeof(float));
    const std::int64_t block_bytes = wire_code_bytes(form);
    std::byte* const first = data + row * (scale_bytes + row_blocks * block_bytes);
    return {reinterpret_cast<float*>(first) + at,
            reinterpret_cast<std::uint8_t*>(first + scale_bytes) + at * block_bytes};
  }
};

// Returns the rows of codes of a view, [rows, bytes of a row].
inline WireRows wire_rows(WireForm form, const TensorView& codes, std::int64_t rows) {
  TERRACE_CHECK(form != WireForm::kPlain);
  TERRACE_CHECK(codes.dtype == DType::kU8);
  TERRACE_CHECK_LT(0, rows);
  constexpr std::uintptr_t kBoundary = sizeof(float);
  TERRACE_CHECK_EQ(reinterpret_cast<std::uintptr_t>(codes.data) % kBoundary, 0U);
  const auto block_bytes = static_cast<std::int64_t>(coded_bytes(form, kWireBlock));
  const std::int64_t row_blocks = codes.elements() / rows / block_bytes;
  TERRACE_CHECK_EQ(rows * row_blocks * block_bytes, codes.elements());
  return {codes.data, form, rows, row_blocks};
}

// Return the rows of codes of an op. The views' sizes are checked.
inline WireRows wire_rows_of(const EncodeWire& op) {
  const WireRows rows = wire_rows(op.form, op.codes, op.codes.shape[0]);
  TERRACE_CHECK_EQ(rows.blocks() * kWireBlock, op.source.elements());
  return rows;
}
inline WireRows wire_errors_of(const EncodeWire& op) {
  if (op.errors.empty()) return {};
  const WireRows errors = wire_rows(WireForm::kInt8, op.errors, 1);
  TERRACE_CHECK_EQ(errors.blocks() * kWireBlock, op.source.elements());
  return errors;
}
inline WireRows wire_rows_of(const DecodeWire& op) {
  const WireRows rows = wire_rows(op.form, op.codes, op.codes.shape[0]);
  TERRACE_CHECK_EQ(rows.blocks() * kWireBlock, op.target.elements());
  return rows;
}
inline WireRows wire_rows_of(const SumWire& op) {
  const WireRows rows = wire_rows(op.form, op.codes, op.codes.shape[0]);
  TERRACE_CHECK_EQ(rows.row_blocks * kWireBlock, op.target.elements());
  return rows;
}

}  // namespace terrace
