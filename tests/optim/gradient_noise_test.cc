#include "optim/gradient_noise.h"

#include <gtest/gtest.h>

#include <utility>

namespace terrace {
namespace {

// Returns the mean of the squared norm of a batch's gradient.
BatchGradient mean_of(const GradientNoise& truth, double samples) {
  return {truth.squared_norm + truth.variance / samples, samples};
}

TEST(GradientNoise, FollowsFromTwoSizesOfBatch) {
  const GradientNoise truth = {.squared_norm = 0.25, .variance = 12};
  for (const auto& [small, big] :
       {std::pair{1.0, 8.0}, std::pair{2.5, 3.0}, std::pair{64.0, 4096.0}}) {
    const GradientNoise found = estimate_gradient_noise(mean_of(truth, small), mean_of(truth, big));
    EXPECT_NEAR(found.squared_norm, truth.squared_norm, 1e-12);
    EXPECT_NEAR(found.variance, truth.variance, 1e-9);
  }
}

TEST(GradientNoise, ScaleIsTheRatioOfAveragesFromTheFirstStepOn) {
  GradientNoiseState state;
  EXPECT_FALSE(gradient_noise_scale(state).has_value());
  state = after_step(state, {.squared_norm = 0.5, .variance = 4});
  EXPECT_DOUBLE_EQ(*gradient_noise_scale(state), 8);
  // The average of an estimate and of one that is too small by as much is about right.
  state = after_step(state, {.squared_norm = 2.5, .variance = 8});
  EXPECT_NEAR(*gradient_noise_scale(state), (8 + 0.99 * 4) / (2.5 + 0.99 * 0.5), 1e-12);
  EXPECT_EQ(state.steps, 2);
  for (int step = 0; step < 2000; ++step) state = after_step(state, {1, 3});
  EXPECT_NEAR(*gradient_noise_scale(state), 3, 1e-6);
}

TEST(GradientNoise, IsUnknownOrLargeWithoutAGradient) {
  const GradientNoiseState noise = after_step({}, {.squared_norm = -1, .variance = 4});
  EXPECT_FALSE(gradient_noise_scale(noise).has_value());
  EXPECT_TRUE(exceeds_samples(noise, 1e9));
  const GradientNoiseState none = after_step({}, {.squared_norm = 1, .variance = -4});
  EXPECT_FALSE(gradient_noise_scale(none).has_value());
  EXPECT_FALSE(exceeds_samples(none, 1));
  EXPECT_FALSE(exceeds_samples({}, 1));
  const GradientNoiseState eight = after_step({}, {.squared_norm = 1, .variance = 8});
  EXPECT_TRUE(exceeds_samples(eight, 7.9));
  EXPECT_FALSE(exceeds_samples(eight, 8.1));
}

}  // namespace
}  // namespace terrace
