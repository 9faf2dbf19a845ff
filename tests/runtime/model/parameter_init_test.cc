#include "runtime/model/parameter_init.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/philox.h"

namespace terrace {
namespace {

ParameterTensor tensor_of(std::int64_t elements, std::uint32_t stream = 3, float deviation = 1.0F) {
  ParameterTensor tensor;
  tensor.rows = elements;
  tensor.random_stream = stream;
  tensor.init_deviation = deviation;
  return tensor;
}

std::vector<float> values(const ParameterTensor& tensor, std::uint64_t seed) {
  std::vector<float> out(static_cast<std::size_t>(tensor.elements()));
  init_parameter(tensor, seed, 0, out);
  return out;
}

TEST(ParameterInit, AnyCutGivesTheSameBits) {
  const ParameterTensor tensor = tensor_of(1500);
  const std::vector<float> whole = values(tensor, 7);
  for (const std::int64_t begin : {0, 1, 2, 3, 4, 255, 256, 257, 1023}) {
    for (const std::size_t count : {0U, 1U, 3U, 5U, 256U, 470U}) {
      std::vector<float> part(count);
      init_parameter(tensor, 7, begin, part);
      EXPECT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + begin))
          << begin << " " << count;
    }
  }
}

TEST(ParameterInit, IsBoxMullerOfPhilox) {
  const ParameterTensor tensor = tensor_of(4 * 3000, 5);
  const std::vector<float> got = values(tensor, 11);
  double worst = 0.0;
  for (std::size_t group = 0; group < 3000; ++group) {
    const auto words = philox({11}, {group, 5, 0});
    for (std::size_t pair = 0; pair < 2; ++pair) {
      const double u = 1.0 - static_cast<double>(words[2 * pair] >> 8) * 0x1.0p-24;
      const double angle =
          2.0 * std::numbers::pi * static_cast<double>(words[2 * pair + 1] >> 8) * 0x1.0p-24;
      const double radius = std::sqrt(-2.0 * std::log(u));
      const std::size_t at = 4 * group + 2 * pair;
      worst = std::max(worst, std::abs(got[at] - radius * std::cos(angle)));
      worst = std::max(worst, std::abs(got[at + 1] - radius * std::sin(angle)));
    }
  }
  EXPECT_LT(worst, 3e-6);
}

TEST(ParameterInit, ADrawOfRadiusZeroIsZero) {
  // One group in 2^24 draws u = 1. With seed 12, this group of stream 3 does.
  constexpr std::uint64_t kGroup = 837'221;
  ASSERT_EQ(philox({12}, {kGroup, 3, 0})[0] >> 8, 0U);
  std::vector<float> pair(2);
  init_parameter(tensor_of(4 * (kGroup + 1)), 12, 4 * kGroup, pair);
  EXPECT_EQ(pair, (std::vector<float>{0.0F, 0.0F}));
}

TEST(ParameterInit, MomentsAreThoseOfANormal) {
  const std::vector<float> got = values(tensor_of(200'000, 1, 0.02F), 1234);
  double mean = 0.0;
  double square = 0.0;
  double fourth = 0.0;
  for (const float value : got) {
    const double x = value / 0.02;
    mean += x;
    square += x * x;
    fourth += x * x * x * x;
  }
  const auto count = static_cast<double>(got.size());
  EXPECT_NEAR(mean / count, 0.0, 0.01);
  EXPECT_NEAR(square / count, 1.0, 0.016);
  EXPECT_NEAR(fourth / count, 3.0, 0.11);
}

TEST(ParameterInit, SeedsAndStreamsDiffer) {
  EXPECT_NE(values(tensor_of(8, 1), 1), values(tensor_of(8, 2), 1));
  EXPECT_NE(values(tensor_of(8, 1), 1), values(tensor_of(8, 1), 2));
  EXPECT_NE(values(tensor_of(8, 1), 1), values(tensor_of(8, 1), 1ULL << 32));
  EXPECT_EQ(values(tensor_of(8, 1), 1), values(tensor_of(8, 1), 1));
}

TEST(ParameterInit, Constants) {
  ParameterTensor tensor = tensor_of(5);
  tensor.init = Init::kOnes;
  EXPECT_EQ(values(tensor, 1), std::vector<float>(5, 1.0F));
  tensor.init = Init::kZeros;
  EXPECT_EQ(values(tensor, 1), std::vector<float>(5, 0.0F));
}

// Covers the largest radius that the 24 bits allow, and the exact zero.
TEST(ParameterInit, NoValueIsWild) {
  const std::vector<float> got = values(tensor_of(1 << 20), 2);
  for (const float value : got) ASSERT_LT(std::abs(value), 5.8F);
}

}  // namespace
}  // namespace terrace
