#include "base/half.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "base/philox.h"

namespace terrace {
namespace {

float from_bits(std::uint32_t bits) { return std::bit_cast<float>(bits); }

// Returns the nearest bf16 by the definition, in double: the two neighbours of an fp32 in bf16 are
// its upper half and the next number.
Bf16 nearest(float value, bool ties_away) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const Bf16 toward_zero = {static_cast<std::uint16_t>(bits >> 16)};
  const Bf16 away = {static_cast<std::uint16_t>((bits >> 16) + 1)};
  const double below = std::abs(static_cast<double>(value) - to_float(toward_zero));
  // Past the largest finite value the next step is where it would be with one more exponent.
  const double step = std::abs(static_cast<double>(to_float(toward_zero)) -
                               to_float(Bf16{static_cast<std::uint16_t>(toward_zero.bits ^ 1U)}));
  const double above = step - below;
  if (below == above) return ties_away || (toward_zero.bits & 1U) != 0 ? away : toward_zero;
  return below < above ? toward_zero : away;
}

TEST(Bf16Test, EveryValueSurvivesTheRoundTrip) {
  for (std::uint32_t bits = 0; bits <= 0xffffU; ++bits) {
    const Bf16 value = {static_cast<std::uint16_t>(bits)};
    const float wide = to_float(value);
    if (std::isnan(wide)) {
      EXPECT_TRUE(std::isnan(to_float(to_bf16_nearest_even(wide))));
      EXPECT_TRUE(std::isnan(to_float(to_bf16_ties_away(wide))));
    } else {
      EXPECT_EQ(to_bf16_nearest_even(wide), value);
      EXPECT_EQ(to_bf16_ties_away(wide), value);
    }
  }
}

TEST(Bf16Test, RoundsToTheNearest) {
  for (std::uint64_t i = 0; i < 20000; ++i) {
    // Low halves around a tie come up as often as others.
    const auto words = philox({1}, {i, 0, 0});
    const std::uint32_t low = (words[1] & 1U) != 0 ? 0x7fffU + words[2] % 3 : words[2] & 0xffffU;
    const float value = from_bits((words[0] & 0xffff0000U) | low);
    // Steps next to a power of two are not even; they have tests of their own below.
    if (!std::isfinite(value) || (words[0] & 0x007f0000U) == 0x007f0000U) continue;
    EXPECT_EQ(to_bf16_nearest_even(value), nearest(value, false)) << std::hexfloat << value;
    EXPECT_EQ(to_bf16_ties_away(value), nearest(value, true)) << std::hexfloat << value;
  }
}

TEST(Bf16Test, Ties) {
  EXPECT_EQ(to_bf16_nearest_even(from_bits(0x3f808000)).bits, 0x3f80);
  EXPECT_EQ(to_bf16_nearest_even(from_bits(0x3f818000)).bits, 0x3f82);
  EXPECT_EQ(to_bf16_ties_away(from_bits(0x3f808000)).bits, 0x3f81);
  EXPECT_EQ(to_bf16_ties_away(from_bits(0xbf808000)).bits, 0xbf81);
  EXPECT_EQ(to_bf16_ties_away(from_bits(0x3f807fff)).bits, 0x3f80);
  EXPECT_EQ(to_bf16_nearest_even(from_bits(0x3fff8000)).bits, 0x4000);
}

TEST(Bf16Test, OverflowsToInfinity) {
  const float largest = std::numeric_limits<float>::max();
  EXPECT_TRUE(std::isinf(to_float(to_bf16_nearest_even(largest))));
  EXPECT_TRUE(std::isinf(to_float(to_bf16_ties_away(-largest))));
  EXPECT_TRUE(std::signbit(to_float(to_bf16_ties_away(-largest))));
}

TEST(Bf16Test, NanKeepsItsSignAndIsNotInfinity) {
  for (const std::uint32_t bits : {0x7f800001U, 0xff800001U, 0x7fffffffU, 0xffffffffU}) {
    for (const Bf16 value :
         {to_bf16_nearest_even(from_bits(bits)), to_bf16_ties_away(from_bits(bits))}) {
      EXPECT_TRUE(is_nan_bits(static_cast<std::uint32_t>(value.bits) << 16));
      EXPECT_EQ(value.bits >> 15, bits >> 31);
    }
  }
}

TEST(Bf16Test, KeepsTheSignOfZeroAndDenormals) {
  EXPECT_EQ(to_bf16_nearest_even(-0.0F).bits, 0x8000);
  EXPECT_EQ(to_bf16_ties_away(0.0F).bits, 0x0000);
  EXPECT_EQ(to_bf16_ties_away(from_bits(0x00008000)).bits, 0x0001);
}

// Returns the value that the bits of a finite fp16 have by the standard.
double value_of(Fp16 number) {
  const int exponent = (number.bits >> 10) & 0x1f;
  const int fraction = number.bits & 0x3ff;
  const double size =
      exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
  return (number.bits & 0x8000U) != 0 ? -size : size;
}

TEST(Fp16Test, EveryValueIsWhatTheStandardSaysAndSurvivesTheRoundTrip) {
  for (std::uint32_t bits = 0; bits <= 0xffffU; ++bits) {
    const Fp16 number = {static_cast<std::uint16_t>(bits)};
    const float wide = to_float(number);
    EXPECT_EQ(std::signbit(wide), (bits & 0x8000U) != 0);
    if ((bits & 0x7fffU) > 0x7c00U) {
      EXPECT_TRUE(std::isnan(wide));
      EXPECT_TRUE(std::isnan(to_float(to_fp16_nearest_even(wide))));
      continue;
    }
    if ((bits & 0x7fffU) == 0x7c00U)
      EXPECT_TRUE(std::isinf(wide));
    else
      EXPECT_EQ(static_cast<double>(wide), value_of(number)) << bits;
    EXPECT_EQ(to_fp16_nearest_even(wide), number) << bits;
  }
}

// Between two neighbours the nearer one is taken, and at the middle the even one. The number next
// to the middle, on either side, already rounds to the nearer one.
TEST(Fp16Test, RoundsToTheNearestAndTiesToEven) {
  for (std::uint32_t bits = 0; bits < 0x7bffU; ++bits) {
    const Fp16 below = {static_cast<std::uint16_t>(bits)};
    const Fp16 above = {static_cast<std::uint16_t>(bits + 1)};
    const auto middle = static_cast<float>((value_of(below) + value_of(above)) / 2);
    EXPECT_EQ(to_fp16_nearest_even(middle), (bits & 1U) == 0 ? below : above) << bits;
    EXPECT_EQ(to_fp16_nearest_even(std::nextafter(middle, 0.0F)), below) << bits;
    EXPECT_EQ(to_fp16_nearest_even(std::nextafter(middle, 1e9F)), above) << bits;
  }
  EXPECT_EQ(to_fp16_nearest_even(65519.996F).bits, 0x7bff);
  EXPECT_EQ(to_fp16_nearest_even(-65520.0F).bits, 0xfc00);
  EXPECT_EQ(to_fp16_nearest_even(std::numeric_limits<float>::max()).bits, 0x7c00);
  EXPECT_EQ(to_fp16_nearest_even(-std::numeric_limits<float>::min()).bits, 0x8000);
}

// Checks any fp32 number, by a search among all of fp16.
TEST(Fp16Test, TakesTheNearestOfAllForAnyNumber) {
  for (std::uint64_t i = 0; i < 50000; ++i) {
    const auto bits = philox({4}, {i, 0, 0});
    // Half of them with exponents from below the denormals to above the largest.
    const std::uint32_t near = (bits[0] & 0x807fffffU) | (100U + bits[1] % 44U) << 23;
    const float value = from_bits(i % 2 == 0 ? bits[0] : near);
    if (std::isnan(value)) continue;
    const double size = std::abs(static_cast<double>(value));
    std::uint32_t below = 0;
    for (std::uint32_t step = 0x4000U; step != 0; step /= 2) {
      const Fp16 next = {static_cast<std::uint16_t>(below + step)};
      if (next.bits <= 0x7bffU && value_of(next) <= size) below += step;
    }
    const double least = value_of({static_cast<std::uint16_t>(below)});
    const double next =
        below == 0x7bffU ? 65536.0 : value_of({static_cast<std::uint16_t>(below + 1)});
    const bool up = size - least > next - size || (size - least == next - size && below % 2 != 0);
    const std::uint32_t sign = std::signbit(value) ? 0x8000U : 0U;
    EXPECT_EQ(to_fp16_nearest_even(value).bits, sign | (below + (up ? 1U : 0U))) << value;
  }
}

TEST(ParameterTest, RoundsAsItsTypeHasIt) {
  const float bf16_tie = from_bits(0x3f808000U);
  EXPECT_EQ(to_parameter<Bf16>(bf16_tie), to_bf16_ties_away(bf16_tie));
  EXPECT_NE(to_parameter<Bf16>(bf16_tie), to_bf16_nearest_even(bf16_tie));
  const float fp16_tie = from_bits(0x3f801000U);
  EXPECT_EQ(to_parameter<Fp16>(fp16_tie).bits, 0x3c00);
  EXPECT_EQ(to_parameter<float>(fp16_tie), fp16_tie);
}

TEST(SplitFloatTest, JoinsToTheSameBits) {
  std::vector<std::uint32_t> all = {0x00000000U, 0x80000000U, 0x00008000U, 0x80008000U,
                                    0x00000001U, 0x7f800000U, 0xff800000U, 0x7f7fffffU,
                                    0xff7f8000U, 0x3f808000U, 0x3f807fffU, 0xbf80ffffU};
  for (std::uint64_t i = 0; i < 50000; ++i) all.push_back(philox({3}, {i, 0, 0})[0]);
  for (const std::uint32_t bits : all) {
    const SplitFloat parts = split(from_bits(bits));
    EXPECT_EQ(parts.high, to_bf16_ties_away(from_bits(bits)));
    if (is_nan_bits(bits)) {
      EXPECT_TRUE(std::isnan(join(parts)));
    } else {
      EXPECT_EQ(std::bit_cast<std::uint32_t>(join(parts)), bits);
    }
  }
  EXPECT_TRUE(std::isnan(join(split(from_bits(0x7f80ffffU)))));
  EXPECT_TRUE(std::isnan(join(split(from_bits(0xff808000U)))));
}

// Because of this, a bf16 parameter and 16 more bits make an exact fp32 master.
TEST(Bf16Test, RemainderOfTiesAwayFitsInt16) {
  for (std::uint64_t i = 0; i < 50000; ++i) {
    const std::uint32_t bits = philox({2}, {i, 0, 0})[0];
    if (is_nan_bits(bits)) continue;
    const Bf16 stored = to_bf16_ties_away(from_bits(bits));
    const std::int64_t remainder =
        static_cast<std::int64_t>(bits) - (static_cast<std::int64_t>(stored.bits) << 16);
    EXPECT_LE(std::numeric_limits<std::int16_t>::min(), remainder);
    EXPECT_LE(remainder, std::numeric_limits<std::int16_t>::max());
  }
}

}  // namespace
}  // namespace terrace
