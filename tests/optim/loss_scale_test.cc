#include "optim/loss_scale.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace terrace {
namespace {

// Returns the scale of each step and after the last; 'o' is a step that overflows, '.' one that
// does not.
std::vector<float> scales(const LossScaleOptions& options, const std::string& steps) {
  LossScaleState state = initial_loss_scale(options);
  std::vector<float> scales = {state.scale};
  for (const char step : steps) {
    state = step == 'o' ? after_overflow(options, state) : after_good_step(options, state);
    scales.push_back(state.scale);
  }
  return scales;
}

using Scales = std::vector<float>;

TEST(LossScale, BeginsAsTheStandardHasIt) {
  const LossScaleOptions options;
  const LossScaleState state = initial_loss_scale(options);
  EXPECT_EQ(state, LossScaleState());
  EXPECT_EQ(state.scale, 65536.0F);
  EXPECT_EQ(options.window, 1000);
  EXPECT_EQ(options.hysteresis, 2);
  EXPECT_EQ(options.minimum, 1.0F);
}

TEST(LossScale, DoublesAfterAWindowOfGoodSteps) {
  LossScaleState state;
  for (int step = 1; step < 1000; ++step) {
    state = after_good_step({}, state);
    ASSERT_EQ(state.scale, 65536.0F) << step;
  }
  state = after_good_step({}, state);
  EXPECT_EQ(state, (LossScaleState{.scale = 131072.0F}));
  EXPECT_EQ(scales({.initial = 8, .window = 3}, "......"), (Scales{8, 8, 8, 16, 16, 16, 32}));
}

TEST(LossScale, AnOverflowBeginsTheWindowAnew) {
  EXPECT_EQ(scales({.initial = 8, .window = 3, .hysteresis = 1}, "..o..o...."),
            (Scales{8, 8, 8, 4, 4, 4, 2, 2, 2, 4, 4}));
}

// As in DeepSpeed without consecutive_hysteresis, overflows are forgiven again only after the scale
// grew.
TEST(LossScale, TheFirstOverflowsAreForgivenUntilItGrows) {
  EXPECT_EQ(scales({.initial = 8, .window = 2}, "o.oo..oo"), (Scales{8, 8, 8, 4, 2, 2, 4, 4, 2}));
  EXPECT_EQ(scales({.initial = 8, .window = 9, .hysteresis = 3}, "o.ooo"),
            (Scales{8, 8, 8, 8, 4, 2}));
}

TEST(LossScale, EndsAtItsMinimum) {
  const LossScaleOptions options = {.initial = 4, .minimum = 2, .window = 9};
  LossScaleState state = initial_loss_scale(options);
  for (const float scale : {4.0F, 4.0F}) {
    EXPECT_EQ(state.scale, scale);
    ASSERT_TRUE(can_skip(options, state));
    state = after_overflow(options, state);
  }
  EXPECT_EQ(state.scale, 2.0F);
  EXPECT_FALSE(can_skip(options, state));
  EXPECT_EQ(state.skipped_steps, 2);
}

// An overflow of a scale that has just grown from the minimum, or begins there, is still forgiven.
TEST(LossScale, OverflowsAtTheMinimumAreForgivenToo) {
  const LossScaleOptions options = {.initial = 1};
  LossScaleState state = initial_loss_scale(options);
  ASSERT_TRUE(can_skip(options, state));
  state = after_overflow(options, state);
  EXPECT_EQ(state.scale, 1.0F);
  EXPECT_FALSE(can_skip(options, state));
}

TEST(LossScaleDeathTest, DoesNotSkipWhereItCannot) {
  const LossScaleOptions options = {.initial = 1, .hysteresis = 1};
  EXPECT_DEATH(after_overflow(options, initial_loss_scale(options)), "can_skip");
}

TEST(LossScale, DoesNotGrowForever) {
  EXPECT_EQ(scales({.initial = 4, .maximum = 8, .window = 1}, "..."), (Scales{4, 8, 8, 8}));
}

TEST(LossScale, CountsTheSkippedSteps) {
  LossScaleState state;
  for (const char step : std::string("o..oo.")) {
    state = step == 'o' ? after_overflow({}, state) : after_good_step({}, state);
  }
  EXPECT_EQ(state, (LossScaleState{
                       .scale = 16384, .good_steps = 1, .overflows_left = 1, .skipped_steps = 3}));
}

}  // namespace
}  // namespace terrace
