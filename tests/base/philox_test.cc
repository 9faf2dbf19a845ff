#include "base/philox.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <set>

namespace terrace {
namespace {

using Words = std::array<std::uint32_t, 4>;

// The known answers that come with the authors' Random123 library (philox 4x32, 10 rounds).
TEST(PhiloxTest, KnownAnswers) {
  EXPECT_EQ(philox({0}, {0, 0, 0}), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox({~0ULL}, {~0ULL, ~0U, ~0U}),
            (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox({0x299f31d0a4093822}, {0x85a308d3243f6a88, 0x13198a2e, 0x03707344}),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(PhiloxTest, EveryPartOfKeyAndCounterCounts) {
  const std::set<Words> distinct = {philox({7}, {1, 2, 3}),
                                    philox({8}, {1, 2, 3}),
                                    philox({7 + (1ULL << 32)}, {1, 2, 3}),
                                    philox({7}, {2, 2, 3}),
                                    philox({7}, {1 + (1ULL << 32), 2, 3}),
                                    philox({7}, {1, 3, 3}),
                                    philox({7}, {1, 2, 4})};
  EXPECT_EQ(distinct.size(), 7U);
}

TEST(UniformTest, IsInTheHalfOpenUnitInterval) {
  EXPECT_EQ(uniform_from_bits(0), 0.0F);
  EXPECT_EQ(uniform_from_bits(0xffU), 0.0F);
  EXPECT_EQ(uniform_from_bits(0x80000000U), 0.5F);
  EXPECT_LT(uniform_from_bits(0xffffffffU), 1.0F);
  EXPECT_EQ(uniform_from_bits(0xffffffffU), 1.0F - 0x1.0p-24F);
}

// Moments of 400,000 numbers from a fixed seed, against six standard errors of each.
TEST(NormalTest, HasTheMomentsOfAStandardNormal) {
  constexpr int kCount = 400'000;
  double sum = 0;
  double squares = 0;
  double fourths = 0;
  double products = 0;
  for (std::uint64_t i = 0; i < kCount / 2; ++i) {
    const Words words = philox({42}, {i, 5, 0});
    const double a = normal_from_bits(words[0], words[1]);
    const double b = normal_from_bits(words[2], words[3]);
    sum += a + b;
    squares += a * a + b * b;
    fourths += a * a * a * a + b * b * b * b;
    products += a * b;
  }
  const double root = std::sqrt(static_cast<double>(kCount));
  EXPECT_NEAR(sum / kCount, 0, 6 / root);
  EXPECT_NEAR(squares / kCount, 1, 6 * std::sqrt(2.0) / root);
  EXPECT_NEAR(fourths / kCount, 3, 6 * std::sqrt(96.0) / root);
  EXPECT_NEAR(products / (kCount / 2.0), 0, 6 / std::sqrt(kCount / 2.0));
}

TEST(NormalTest, IsFiniteAtTheEndsOfTheRange) {
  for (const std::uint32_t a : {0U, 1U, 0x7fffffffU, 0xffffffffU}) {
    for (const std::uint32_t b : {0U, 0x80000000U, 0xffffffffU}) {
      EXPECT_TRUE(std::isfinite(normal_from_bits(a, b)));
    }
  }
  EXPECT_EQ(normal_from_bits(0, 0), 0.0F);
}

}  // namespace
}  // namespace terrace
