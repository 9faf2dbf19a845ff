#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "base/half.h"
#include "base/philox.h"

// Moments in 16 and in 8 bits, and the random numbers that round them: the scalar definitions, for
// hosts and devices. docs/numerics.md says why they are so.
namespace terrace {

// The choice of the random numbers that round the moments of an update. They are drawn for (seed,
// step, stream, element), where the elements of a range are counted from `first_element` of its
// unit, a multiple of kRoundingGroup.
struct MomentRounding {
  std::uint64_t seed = 0;
  std::uint32_t stream = 0;  // the unit's
  std::int64_t first_element = 0;
};

// The streams of moments begin here, above the streams of parameters, which are numbered from 0.
inline constexpr std::uint32_t kMomentStreams = 0x4D000000U;

// The size of a group of elements, which share the bits that round their moments. A group has 16
// Philox blocks, so that a vector of 16 elements or fewer takes one word of as many neighbouring
// blocks. Turned by one byte after another, the word serves four vectors. So some moments round by
// the same bits as others, and the two moments of one element by bits that are partly the same.
// That does no harm: each rounding is without bias if its own bits are uniform.
inline constexpr std::int64_t kRoundingGroup = 256;

TERRACE_HOST_DEVICE inline std::uint32_t rounding_bits(const MomentRounding& rounding,
                                                       std::uint32_t step, std::int64_t element) {
  const auto e = static_cast<std::uint64_t>(rounding.first_element + element);
  const std::uint64_t block = e / kRoundingGroup * 16 + e % 16;
  const std::uint32_t word = philox({rounding.seed}, {block, rounding.stream, step})[e % 64 / 16];
  return std::rotr(word, static_cast<int>(e % kRoundingGroup / 64 * 8));
}

// Returns the bits of rounding_bits() that round a slot to bf16, which drops 16.
TERRACE_HOST_DEVICE inline std::uint32_t half_bits_of_slot(std::size_t slot, std::uint32_t random) {
  return (slot == 0 ? random : random >> 8) & 0xffffU;
}

// Returns the bf16 next below or above in size, so that the mean over all 16-bit `random` is the
// value.
TERRACE_HOST_DEVICE inline Bf16 to_bf16_stochastic(float value, std::uint32_t random) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  return Bf16{static_cast<std::uint16_t>(bf16_in_upper_half(bits, random) >> 16)};
}

// Codes of 8 bits for a block of elements that share an exponent. They are small floating-point
// numbers with four bits of fraction. For slots with a sign, as a first moment, they have that sign
// and three bits of exponent; for slots that are never negative, as a second moment, they have four
// bits of exponent. The highest exponent is the block's; at the lowest, numbers go down to zero in
// equal steps.
inline constexpr std::int64_t kMomentBlock = 256;
inline constexpr int kFractionBits = 4;
inline constexpr int kDroppedBits = 23 - kFractionBits;  // of fp32's fraction
inline constexpr std::uint32_t kHalfOfDropped = 1U << (kDroppedBits - 1);
inline constexpr std::uint32_t kTopExponents[] = {7, 15};  // with a sign, without
// Blocks whose largest number is smaller than 2^-95 share the lowest steps.
inline constexpr std::uint32_t kLeastExponent = 32;
// Moments above 2^120 become the largest number of such a block, so that the factor that turns a
// code's fp16 into its number stays finite.
inline constexpr std::uint32_t kMostExponent = 246;

// Returns the exponent that a block with this largest size (as bits of an fp32 without sign)
// shares, so that no number of the block rounds up past the highest code. Returns 0 for zeros
// alone.
TERRACE_HOST_DEVICE inline std::uint8_t block_exponent(std::uint32_t largest_bits) {
  if (largest_bits == 0) return 0;
  const std::uint32_t exponent = (largest_bits + ((1U << kDroppedBits) - 1)) >> 23;
  // By value: a device has no address of these constants.
  const std::uint32_t most = exponent < kMostExponent ? exponent : kMostExponent;
  return static_cast<std::uint8_t>(most < kLeastExponent ? kLeastExponent : most);
}

// Returns the code of `size`. A size is not negative, and is 0 where the exponent is 0; `random`
// has kDroppedBits bits. Top is one of kTopExponents.
template <std::uint32_t Top>
TERRACE_HOST_DEVICE inline std::uint32_t encode_size(float size, std::uint8_t exponent,
                                                     std::uint32_t random) {
  const std::uint32_t normal = (exponent - Top + 1) << 23;  // the least with a full fraction
  const auto bits = std::bit_cast<std::uint32_t>(size);
  const bool is_small = bits < normal;
  // Adding the least normal number puts smaller numbers on the steps of that number's fraction.
  const std::uint32_t placed =
      is_small ? std::bit_cast<std::uint32_t>(size + std::bit_cast<float>(normal)) : bits;
  const std::uint32_t base = is_small ? normal : normal - (1U << 23);
  constexpr std::uint32_t kMost = (Top + 1) * (1U << kFractionBits) - 1;
  return std::min((placed - base + random) >> kDroppedBits, kMost);
}

// Returns the bits of rounding_bits() that are added to the bits that a slot's code drops.
TERRACE_HOST_DEVICE inline std::uint32_t dropped_bits_of_slot(std::size_t slot,
                                                              std::uint32_t random) {
  return slot == 0 ? random >> (32 - kDroppedBits) : random & ((1U << kDroppedBits) - 1);
}

// A code is read as an fp16, whose fraction and exponents hold it, and multiplied by a power of
// two.
inline constexpr int kShiftToFp16 = 10 - kFractionBits;
inline constexpr std::uint32_t kFp16Bias = 15;

// Returns the factor that turns the fp16 of a code of this kind into its number; 0 if the exponent
// is 0.
template <std::uint32_t Top>
TERRACE_HOST_DEVICE inline float scale_of_codes(std::uint8_t exponent) {
  const std::uint32_t bits = (exponent + kFp16Bias - Top) << 23;
  return exponent == 0 ? 0.0F : std::bit_cast<float>(bits);
}

inline constexpr std::uint32_t kSignOfCode = 0x80;

TERRACE_HOST_DEVICE inline std::uint8_t encode_moment1(float value, std::uint8_t exponent,
                                                       std::uint32_t random) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto size = std::bit_cast<float>(bits & 0x7fffffffU);
  const std::uint32_t code = encode_size<kTopExponents[0]>(size, exponent, random);
  return static_cast<std::uint8_t>(code | ((bits >> 24) & kSignOfCode));
}

TERRACE_HOST_DEVICE inline Fp16 fp16_of_code1(std::uint32_t code) {
  const std::uint32_t size = (code & ~kSignOfCode) << kShiftToFp16;
  return Fp16{static_cast<std::uint16_t>(size | (code & kSignOfCode) << 8)};
}

TERRACE_HOST_DEVICE inline float decode_moment1(std::uint8_t code, std::uint8_t exponent) {
  return to_float(fp16_of_code1(code)) * scale_of_codes<kTopExponents[0]>(exponent);
}

// A number that is not zero stays so: a second moment of zero would divide its first by epsilon
// alone.
TERRACE_HOST_DEVICE inline std::uint8_t encode_moment2(float value, std::uint8_t exponent,
                                                       std::uint32_t random) {
  const std::uint32_t code = encode_size<kTopExponents[1]>(value, exponent, random);
  return static_cast<std::uint8_t>(std::max(code, value > 0 ? 1U : 0U));
}

TERRACE_HOST_DEVICE inline Fp16 fp16_of_code2(std::uint32_t code) {
  return Fp16{static_cast<std::uint16_t>(code << kShiftToFp16)};
}

TERRACE_HOST_DEVICE inline float decode_moment2(std::uint8_t code, std::uint8_t exponent) {
  return to_float(fp16_of_code2(code)) * scale_of_codes<kTopExponents[1]>(exponent);
}

// Encode and decode a slot with or without a sign.
TERRACE_HOST_DEVICE inline std::uint8_t encode_slot(bool has_sign, float value,
                                                    std::uint8_t exponent, std::uint32_t random) {
  return has_sign ? encode_moment1(value, exponent, random)
                  : encode_moment2(value, exponent, random);
}
TERRACE_HOST_DEVICE inline float decode_slot(bool has_sign, std::uint8_t code,
                                             std::uint8_t exponent) {
  return has_sign ? decode_moment1(code, exponent) : decode_moment2(code, exponent);
}

}  // namespace terrace
