#include "optim/grad_norm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace terrace {
namespace {

double norm_of(std::span<const double> partials) {
  GradientNorm norm;
  norm.add(partials);
  return norm.value();
}

TEST(GradientNorm, IsTheRootOfTheSum) {
  EXPECT_EQ(norm_of(std::vector{9.0, 16.0}), 5.0);
  EXPECT_EQ(norm_of({}), 0.0);
}

TEST(GradientNorm, AddsInOrder) {
  // 2^53 + 1 rounds to 2^53, so the ones are lost one by one after the large block and kept before
  // it.
  const double large = 0x1.0p53;
  const std::vector<double> large_first = {large, 1.0, 1.0, 1.0, 1.0};
  const std::vector<double> large_last = {1.0, 1.0, 1.0, 1.0, large};
  EXPECT_EQ(norm_of(large_first), std::sqrt(large));
  EXPECT_EQ(norm_of(large_last), std::sqrt(large + 4.0));
}

TEST(GradientNorm, PassesOnWhatIsNotFinite) {
  const double infinity = std::numeric_limits<double>::infinity();
  EXPECT_EQ(norm_of(std::vector{1.0, infinity}), infinity);
  EXPECT_TRUE(std::isnan(norm_of(std::vector{1.0, std::nan("")})));
}

TEST(ClipCoefficient, IsOneWhereClippingIsOffOrTheNormIsWithinIt) {
  EXPECT_EQ(clip_coefficient(1e6, 0.0), 1.0F);
  EXPECT_EQ(clip_coefficient(0.0, 1.0), 1.0F);
  EXPECT_EQ(clip_coefficient(0.999, 1.0), 1.0F);
  EXPECT_EQ(clip_coefficient(1.0, 1.0), 1.0F);
}

TEST(ClipCoefficient, ScalesTheNormToTheMaximum) {
  EXPECT_EQ(clip_coefficient(4.0, 1.0), static_cast<float>(1.0 / (4.0 + 1e-6)));
  EXPECT_EQ(clip_coefficient(10.0, 2.5), static_cast<float>(2.5 / (10.0 + 1e-6)));
  EXPECT_LT(clip_coefficient(1.001, 1.0), 1.0F);
  for (const double norm : {1.5, 37.0, 1e4, 1e12}) {
    EXPECT_NEAR(norm * double{clip_coefficient(norm, 1.0)}, 1.0, 2e-6) << norm;
  }
}

}  // namespace
}  // namespace terrace
