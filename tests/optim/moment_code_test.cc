#include "optim/moment_code.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <vector>

namespace terrace {
namespace {

float from_bits(std::uint32_t bits) { return std::bit_cast<float>(bits); }
std::uint32_t to_bits(float value) { return std::bit_cast<std::uint32_t>(value); }

constexpr std::uint8_t kExponents[] = {kLeastExponent, 77, 127, 200, kMostExponent};

TEST(MomentCode, EveryCodeComesBack) {
  for (const std::uint8_t exponent : kExponents) {
    for (int code = 0; code < 256; ++code) {
      const auto byte = static_cast<std::uint8_t>(code);
      EXPECT_EQ(encode_moment2(decode_moment2(byte, exponent), exponent, kHalfOfDropped), byte);
      EXPECT_EQ(encode_moment1(decode_moment1(byte, exponent), exponent, kHalfOfDropped), byte);
    }
  }
}

// Because of this, a checkpoint, which has no exponents, gives the same numbers.
TEST(MomentCode, NumbersSurviveALowerExponentOfTheirBlock) {
  for (int code = 1; code < 256; ++code) {
    const auto byte = static_cast<std::uint8_t>(code);
    const float second = decode_moment2(byte, 127);
    const std::uint8_t own = block_exponent(to_bits(second));
    ASSERT_LE(own, 127);
    EXPECT_EQ(decode_moment2(encode_moment2(second, own, kHalfOfDropped), own), second);
    const float first = decode_moment1(byte, 127);
    const std::uint8_t lower = block_exponent(to_bits(first) & 0x7fffffffU);
    EXPECT_EQ(decode_moment1(encode_moment1(first, lower, kHalfOfDropped), lower), first);
  }
}

TEST(MomentCode, CodesGrowWithTheirNumbers) {
  for (int code = 1; code < 256; ++code) {
    EXPECT_LT(decode_moment2(static_cast<std::uint8_t>(code - 1), 127),
              decode_moment2(static_cast<std::uint8_t>(code), 127));
  }
  for (int code = 1; code < 128; ++code) {
    const float number = decode_moment1(static_cast<std::uint8_t>(code), 127);
    EXPECT_LT(decode_moment1(static_cast<std::uint8_t>(code - 1), 127), number);
    EXPECT_EQ(decode_moment1(static_cast<std::uint8_t>(code + 128), 127), -number);
  }
}

// Returns numbers over the whole range of a block whose largest is just below 2.
std::vector<float> numbers_of_a_block() {
  std::vector<float> numbers;
  for (float x = 1.99999F; x > 1e-9F; x *= 0.83F) numbers.push_back(x);
  return numbers;
}

// The mean over all random bits is the number, as exactly as 16 of them can divide a step.
TEST(MomentCode, RoundsWithoutBias) {
  const std::uint8_t exponent = block_exponent(to_bits(1.99999F));
  for (const float x : numbers_of_a_block()) {
    double first = 0, second = 0, half = 0;
    std::set<float> values;
    for (std::uint32_t random = 0; random < 65536; ++random) {
      const std::uint32_t dropped = random << (kDroppedBits - 16);
      first += decode_moment1(encode_moment1(-x, exponent, dropped), exponent);
      second += decode_moment2(encode_moment2(x, exponent, dropped), exponent);
      half += to_float(to_bf16_stochastic(x, random));
      values.insert(to_float(to_bf16_stochastic(x, random)));
    }
    const double step1 = std::max(std::exp2(std::ilogb(x) - 4.0), 0x1.0p-9);
    EXPECT_NEAR(first / 65536, -double{x}, step1 * 0x1.0p-15) << x;
    // Every second moment below the least one that is not zero has that least one as its mean.
    const double least = decode_moment2(1, exponent);
    if (x > least) {
      const double step2 = std::max(std::exp2(std::ilogb(x) - 4.0), least);
      EXPECT_NEAR(second / 65536, x, step2 * 0x1.0p-15) << x;
    } else {
      EXPECT_EQ(second / 65536, least) << x;
    }
    EXPECT_NEAR(half / 65536, x, std::exp2(std::ilogb(x) - 7.0) * 0x1.0p-15) << x;
    EXPECT_LE(values.size(), 2U);
  }
}

TEST(MomentCode, ASecondMomentIsZeroOnlyWhereItWas) {
  for (const std::uint8_t exponent : kExponents) {
    EXPECT_EQ(encode_moment2(0.0F, exponent, 0x7ffff), 0);
    EXPECT_EQ(encode_moment2(from_bits(1), exponent, 0), 1);
    EXPECT_GT(decode_moment2(1, exponent), 0.0F);
  }
}

TEST(MomentCode, TheLargestOfABlockNeverRoundsPastTheHighestCode) {
  for (std::uint32_t bits = 0x3f800000; bits < 0x40000000; bits += 0x1fff) {
    const std::uint8_t exponent = block_exponent(bits);
    const double size = from_bits(bits);
    const std::uint8_t code = encode_moment1(from_bits(bits), exponent, 0x7ffff);
    EXPECT_GE(decode_moment1(code, exponent), size);
    EXPECT_LE(decode_moment1(code, exponent), size * (1 + 0x1.0p-4));
  }
}

TEST(MomentCode, ZerosAndTheEndsOfTheRange) {
  EXPECT_EQ(block_exponent(0), 0);
  EXPECT_EQ(decode_moment1(0, 0), 0.0F);
  EXPECT_EQ(decode_moment2(0, 0), 0.0F);
  EXPECT_EQ(block_exponent(1), kLeastExponent);
  EXPECT_EQ(block_exponent(0x7f7fffff), kMostExponent);
  EXPECT_EQ(block_exponent(0x7f800000), kMostExponent);
  const float most = decode_moment2(255, kMostExponent);
  EXPECT_TRUE(std::isfinite(most));
  EXPECT_EQ(encode_moment2(from_bits(0x7f800000), kMostExponent, 0x7ffff), 255);
}

TEST(MomentCode, EveryElementAndStepHasAWordOfItsOwn) {
  std::set<std::uint32_t> seen;
  for (std::int64_t element = 0; element < 1000; ++element) {
    for (std::uint32_t step = 1; step <= 4; ++step) {
      seen.insert(rounding_bits({.seed = 5, .stream = 3}, step, element));
    }
  }
  EXPECT_GE(seen.size(), 3999U);
  const std::uint32_t random = rounding_bits({.seed = 5, .stream = 3}, 1, 3);
  for (int row = 1; row < 4; ++row) {
    EXPECT_EQ(rounding_bits({.seed = 5, .stream = 3}, 1, 3 + row * 64), std::rotr(random, row * 8));
  }
  EXPECT_EQ(rounding_bits({.seed = 5, .stream = 3, .first_element = 768}, 2, 7),
            rounding_bits({.seed = 5, .stream = 3}, 2, 775));
}

TEST(MomentCode, TheMomentsOfAnElementTakeOtherEndsOfItsWord) {
  EXPECT_EQ(half_bits_of_slot(0, 0x12345678), 0x5678U);
  EXPECT_EQ(half_bits_of_slot(1, 0x12345678), 0x3456U);
  EXPECT_EQ(dropped_bits_of_slot(0, 0xffffe000), 0x7ffffU);
  EXPECT_EQ(dropped_bits_of_slot(0, 0x00001fff), 0U);
  EXPECT_EQ(dropped_bits_of_slot(1, 0x0007ffff), 0x7ffffU);
  EXPECT_EQ(dropped_bits_of_slot(1, 0xfff80000), 0U);
}

}  // namespace
}  // namespace terrace
