#include "optim/lr_schedule.h"

#include <gtest/gtest.h>

#include <cmath>

namespace terrace {
namespace {

LrSchedule schedule(LrSchedulerType type) {
  return {.type = type,
          .learning_rate = 1.0,
          .min_learning_rate = 0.2,
          .warmup_steps = 10,
          .total_steps = 110};
}

TEST(LrSchedule, WarmsUpLinearly) {
  for (const LrSchedulerType type :
       {LrSchedulerType::kCosine, LrSchedulerType::kLinear, LrSchedulerType::kConstant}) {
    EXPECT_EQ(learning_rate_at(schedule(type), 1), 0.1);
    EXPECT_EQ(learning_rate_at(schedule(type), 5), 0.5);
    EXPECT_EQ(learning_rate_at(schedule(type), 10), 1.0);
  }
}

TEST(LrSchedule, CosineFallsToTheMinimumAtTheLastStep) {
  const LrSchedule cosine = schedule(LrSchedulerType::kCosine);
  EXPECT_NEAR(learning_rate_at(cosine, 35), 0.2 + 0.8 * (2.0 + std::sqrt(2.0)) / 4.0, 1e-15);
  EXPECT_NEAR(learning_rate_at(cosine, 60), 0.6, 1e-15);
  EXPECT_NEAR(learning_rate_at(cosine, 85), 0.2 + 0.8 * (2.0 - std::sqrt(2.0)) / 4.0, 1e-15);
  EXPECT_GT(learning_rate_at(cosine, 109), 0.2);
  EXPECT_EQ(learning_rate_at(cosine, 110), 0.2);
  EXPECT_EQ(learning_rate_at(cosine, 500), 0.2);
}

TEST(LrSchedule, LinearFallsToTheMinimumAtTheLastStep) {
  const LrSchedule linear = schedule(LrSchedulerType::kLinear);
  EXPECT_NEAR(learning_rate_at(linear, 11), 0.992, 1e-15);
  EXPECT_NEAR(learning_rate_at(linear, 60), 0.6, 1e-15);
  EXPECT_EQ(learning_rate_at(linear, 110), 0.2);
  EXPECT_EQ(learning_rate_at(linear, 111), 0.2);
}

TEST(LrSchedule, ConstantStaysAtThePeak) {
  const LrSchedule constant = schedule(LrSchedulerType::kConstant);
  EXPECT_EQ(learning_rate_at(constant, 11), 1.0);
  EXPECT_EQ(learning_rate_at(constant, 1000), 1.0);
}

TEST(LrSchedule, WithoutWarmupTheFirstStepHasBegunToFall) {
  LrSchedule linear = schedule(LrSchedulerType::kLinear);
  linear.warmup_steps = 0;
  linear.total_steps = 4;
  EXPECT_NEAR(learning_rate_at(linear, 1), 0.8, 1e-15);
  EXPECT_EQ(learning_rate_at(linear, 4), 0.2);
}

TEST(LrSchedule, ARunThatEndsInItsWarmupKeepsItsLastRate) {
  LrSchedule cosine = schedule(LrSchedulerType::kCosine);
  cosine.total_steps = 5;
  EXPECT_EQ(learning_rate_at(cosine, 5), 0.5);
  EXPECT_EQ(learning_rate_at(cosine, 50), 0.5);
  cosine.total_steps = 10;
  EXPECT_EQ(learning_rate_at(cosine, 10), 1.0);
  EXPECT_EQ(learning_rate_at(cosine, 11), 1.0);
}

TEST(LrScheduleDeathTest, CountsStepsFromOne) {
  EXPECT_DEATH(learning_rate_at(schedule(LrSchedulerType::kCosine), 0), "1 and 0");
}

}  // namespace
}  // namespace terrace
