#pragma once

#include <bit>
#include <cstdint>
#include <type_traits>

// bfloat16 (the upper half of an IEEE fp32) and IEEE fp16 as storage types. Arithmetic is done in
// fp32. Host and device compile the same text (TERRACE_HOST_DEVICE is empty without nvcc).
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
#if defined(__CUDA_ARCH__)
  return isnan(std::bit_cast<float>(bits));  // one comparison
#else
  return (bits & 0x7fffffffU) > 0x7f800000U;
#endif
}

// Rounds to nearest, ties to even, as hardware does. For activations and their gradients.
TERRACE_HOST_DEVICE inline Bf16 to_bf16_nearest_even(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if (is_nan_bits(bits)) return Bf16{static_cast<std::uint16_t>((bits >> 16) | 0x0040U)};
  return Bf16{static_cast<std::uint16_t>((bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16)};
}

// Returns a word whose upper half is the bf16 of the fp32 number with these bits. `added`, below
// 2^16, is added before the lower half is dropped. NaN stays NaN.
TERRACE_HOST_DEVICE inline std::uint32_t bf16_in_upper_half(std::uint32_t bits,
                                                            std::uint32_t added) {
  return is_nan_bits(bits) ? bits | 0x00400000U : bits + added;
}

// The number to add for rounding to nearest, ties away from zero. It is for parameters only, so
// that the 16-bit remainder to the fp32 master fits an int16 (docs/numerics.md).
inline constexpr std::uint32_t kAddedForTiesAway = 0x8000U;

TERRACE_HOST_DEVICE inline Bf16 to_bf16_ties_away(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  return Bf16{static_cast<std::uint16_t>(bf16_in_upper_half(bits, kAddedForTiesAway) >> 16)};
}

// IEEE 754 binary16.
struct Fp16 {
  std::uint16_t bits = 0;
  friend bool operator==(Fp16, Fp16) = default;
};

// Exact. Multiplying by 2^112 moves the exponent into place, denormals included.
TERRACE_HOST_DEVICE inline float to_float(Fp16 value) {
  const std::uint32_t sign = static_cast<std::uint32_t>(value.bits & 0x8000U) << 16;
  const std::uint32_t low = static_cast<std::uint32_t>(value.bits & 0x7fffU) << 13;
  const auto scaled = std::bit_cast<std::uint32_t>(std::bit_cast<float>(low) * 0x1p112F);
  const std::uint32_t magnitude = low >= 0x0f800000U ? low | 0x7f800000U : scaled;
  return std::bit_cast<float>(sign | magnitude);
}

// Rounds to nearest, ties to even; numbers from 65520 on become infinity. NaN stays NaN.
TERRACE_HOST_DEVICE inline Fp16 to_fp16_nearest_even(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t magnitude = bits & 0x7fffffffU;
  // A denormal is a multiple of 2^-24, which is also the last place of fp32 numbers from 1/2 to 1.
  const float shifted = std::bit_cast<float>(magnitude) + 0.5F;
  const std::uint32_t denormal = std::bit_cast<std::uint32_t>(shifted) - 0x3f000000U;
  const std::uint32_t normal = (magnitude - 0x38000000U + 0xfffU + ((magnitude >> 13) & 1U)) >> 13;
  std::uint32_t rounded = magnitude < 0x38800000U ? denormal : normal;
  if (magnitude >= 0x47800000U) rounded = 0x7c00U;
  if (is_nan_bits(bits)) rounded = 0x7e00U;
  return Fp16{static_cast<std::uint16_t>(((bits >> 16) & 0x8000U) | rounded)};
}

// Rounds an exact parameter to the type that computes with it.
template <typename T>
TERRACE_HOST_DEVICE T to_parameter(float exact) {
  if constexpr (std::is_same_v<T, Bf16>) {
    return to_bf16_ties_away(exact);
  } else if constexpr (std::is_same_v<T, Fp16>) {
    return to_fp16_nearest_even(exact);
  } else {
    return exact;
  }
}

// An fp32 number in two pieces of 16 bits: the bf16 that it rounds to, ties away, and the
// remainder, which is the difference between the two. Exact for every number; a NaN stays a NaN.
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
