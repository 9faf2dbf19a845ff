#pragma once

#include <bit>
#include <cstdint>

// bfloat16 as a storage type: the upper half of an IEEE fp32. Arithmetic is done in fp32.
// Host and device compile the same text (TERRACE_HOST_DEVICE is empty without nvcc).
#if defined(__CUDACC__)
#define TERRACE_HOST_DEVICE __host__ __device__
#else
#define TERRACE_HOST_DEVICE
#endif

namespace terrace {

struct Bf16 {
  std::uint16_t bits = 0;
  friend bool operator==(Bf16, Bf16) = default;
};

TERRACE_HOST_DEVICE inline float to_float(Bf16 value) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(value.bits) << 16);
}
TERRACE_HOST_DEVICE inline float to_float(float value) { return value; }

TERRACE_HOST_DEVICE inline bool is_nan_bits(std::uint32_t bits) {
  return (bits & 0x7fffffffU) > 0x7f800000U;
}

// Nearest, ties to even: what hardware does. For activations and their gradients.
TERRACE_HOST_DEVICE inline Bf16 to_bf16_nearest_even(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if (is_nan_bits(bits)) return Bf16{static_cast<std::uint16_t>((bits >> 16) | 0x0040U)};
  return Bf16{static_cast<std::uint16_t>((bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16)};
}

// Nearest, ties away from zero: for parameters only, so that the 16-bit remainder to the fp32
// master fits an int16 (docs/numerics.md). NaN stays NaN.
TERRACE_HOST_DEVICE inline Bf16 to_bf16_ties_away(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if (is_nan_bits(bits)) return Bf16{static_cast<std::uint16_t>((bits >> 16) | 0x0040U)};
  return Bf16{static_cast<std::uint16_t>((bits + 0x8000U) >> 16)};
}

// An fp32 number in two pieces of 16 bits: the bf16 that it rounds to, ties away, and what that
// lacks of it. Exact for every number; a NaN stays a NaN.
struct SplitFloat {
  Bf16 high;
  std::int16_t remainder = 0;
  friend bool operator==(const SplitFloat&, const SplitFloat&) = default;
};

TERRACE_HOST_DEVICE inline SplitFloat split(float value) {
  const auto low = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(value));
  return {to_bf16_ties_away(value), static_cast<std::int16_t>(low)};
}
TERRACE_HOST_DEVICE inline float join(SplitFloat parts) {
  const auto high = static_cast<std::uint32_t>(parts.high.bits) << 16;
  return std::bit_cast<float>(high + static_cast<std::uint32_t>(std::int32_t{parts.remainder}));
}

}  // namespace terrace
