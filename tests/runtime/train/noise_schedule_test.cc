#include "runtime/train/noise_schedule.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace terrace {
namespace {

BatchOptions automatic_batch(std::int64_t most) {
  BatchOptions batch;
  batch.adapts_accumulation = batch.measures_gradient_noise = true;
  batch.gradient_accumulation_steps = most;
  batch.accumulation_schedule = {first_phase(batch, 2)};
  return batch;
}

// Returns the state after a step that has shown this noise scale.
GradientNoiseState state_with(double scale) {
  return after_step({}, {.squared_norm = 1, .variance = scale});
}

using Phases = std::vector<AccumulationPhase>;

TEST(NoiseSchedule, BeginsWithTheFewestMicroBatchesThatShowNoise) {
  const BatchOptions batch = automatic_batch(8);
  EXPECT_EQ(first_phase(batch, 1), (AccumulationPhase{2, 1}));
  EXPECT_EQ(first_phase(batch, 3), (AccumulationPhase{1, 1}));
}

TEST(NoiseSchedule, DoublesAtDecisionsWhileTheNoiseScaleIsLarger) {
  BatchOptions batch = automatic_batch(6);
  constexpr std::int64_t kSamples = 10;  // of a micro-batch
  const auto follow = [&](std::int64_t from, std::int64_t to, double scale) {
    for (std::int64_t step = from; step <= to; ++step) {
      choose_next_phase(step, state_with(scale), kSamples, batch);
    }
  };
  follow(1, 15, 1000);
  EXPECT_EQ(batch.accumulation_schedule, (Phases{{1, 1}}));
  follow(16, 17, 11);
  EXPECT_EQ(batch.accumulation_schedule, (Phases{{1, 1}, {2, 18}}));
  follow(18, 40, 19.9);  // step 32 decides: less than the samples of a step
  EXPECT_EQ(batch.accumulation_schedule.size(), 2U);
  follow(41, 64, 21);
  EXPECT_EQ(batch.accumulation_schedule, (Phases{{1, 1}, {2, 18}, {4, 50}}));
  follow(65, 200, 1000);  // the largest number is no power of two
  EXPECT_EQ(batch.accumulation_schedule, (Phases{{1, 1}, {2, 18}, {4, 50}, {6, 82}}));
}

TEST(NoiseSchedule, WithoutAnEstimateStaysAsItIs) {
  BatchOptions batch = automatic_batch(8);
  choose_next_phase(16, {}, 10, batch);
  EXPECT_EQ(batch.accumulation_schedule.size(), 1U);
}

TEST(NoiseSchedule, GoesOnFromARecord) {
  BatchOptions batch = automatic_batch(8);
  batch.accumulation_schedule = {{1, 1}, {2, 18}, {4, 50}};
  const NoiseRecord record = noise_record(state_with(3), batch);
  EXPECT_EQ(record.noise, state_with(3));
  BatchOptions resumed = automatic_batch(8);
  take_phases(record.phases, resumed);
  EXPECT_EQ(resumed.accumulation_schedule, batch.accumulation_schedule);
  BatchOptions smaller = automatic_batch(3);
  take_phases(record.phases, smaller);
  EXPECT_EQ(smaller.accumulation_schedule, (Phases{{1, 1}, {2, 18}, {3, 50}}));
  batch.adapts_accumulation = false;
  EXPECT_TRUE(noise_record({}, batch).phases.empty());
}

TEST(NoiseSchedule, CountsSmallBatchesInSamples) {
  StepResult result;
  result.gradient_norm = 2;
  EXPECT_FALSE(noise_of_step(result, 8).has_value());
  // A quarter of the tokens of 8 samples: 2 samples.
  result.small_batch = SmallBatch{.squared_norm = 7, .tokens = 25, .tokens_of_step = 100};
  const std::optional<GradientNoise> noise = noise_of_step(result, 8);
  ASSERT_TRUE(noise.has_value());
  EXPECT_EQ(*noise, estimate_gradient_noise({7, 2}, {4, 8}));
  result.gradient_norm = std::numeric_limits<double>::infinity();
  EXPECT_FALSE(noise_of_step(result, 8).has_value());
}

}  // namespace
}  // namespace terrace
