#include "runtime/train/periodic_saves.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>

namespace terrace {
namespace {

using testing::HasSubstr;

FirstSteps measured(std::initializer_list<double> seconds) {
  FirstSteps steps;
  for (const double step_s : seconds) steps.add(step_s, 1);
  return steps;
}

TEST(PeriodicSaves, AQuarterOfAnHourIsANumberOfStepsByTheirTime) {
  EXPECT_EQ(steps_between_saves(900), 1);
  EXPECT_EQ(steps_between_saves(2000), 1);
  EXPECT_EQ(steps_between_saves(450), 2);
  EXPECT_EQ(steps_between_saves(2.5), 360);
  EXPECT_EQ(steps_between_saves(0.105), 8600);
  EXPECT_EQ(steps_between_saves(0.0055), 160'000);
  EXPECT_EQ(steps_between_saves(0), 1'000'000'000);
}

// The very first step is ignored if there are others.
TEST(PeriodicSaves, TheNumberIsChosenFromTheFirstStepsOnceTheyAreDone) {
  EXPECT_EQ(choose_save_interval(measured({90, 9, 9}), 100), std::nullopt);
  EXPECT_EQ(choose_save_interval(measured({90, 9, 9, 10}), 100), 100);
}

// A run whose steps take minutes must not continue for hours without saving.
TEST(PeriodicSaves, TheNumberIsChosenAfterAQuarterOfAnHourFromTheStepsThereAre) {
  EXPECT_EQ(choose_save_interval(measured({}), 1000), std::nullopt);
  EXPECT_EQ(choose_save_interval(measured({600}), 600), std::nullopt);
  EXPECT_EQ(choose_save_interval(measured({950}), 950), 1);
  EXPECT_EQ(choose_save_interval(measured({600, 300}), 900), 3);
}

TEST(PeriodicSaves, NothingIsDueBeforeTheNumberIsChosenNorWithoutRoom) {
  PeriodicSaves saves({.is_automatic = true, .steps = 0}, /*has_room=*/true);
  EXPECT_TRUE(saves.is_open());
  EXPECT_FALSE(saves.is_due(10));
  EXPECT_FALSE(saves.choose(0));
  EXPECT_TRUE(saves.is_open());
  EXPECT_TRUE(saves.choose(5));
  EXPECT_FALSE(saves.is_open());
  EXPECT_TRUE(saves.is_due(10));
  EXPECT_FALSE(saves.is_due(11));
  EXPECT_THAT(saves.describe_choice(), HasSubstr("every 5 steps, about every 15 minutes"));

  const PeriodicSaves without({.is_automatic = true, .steps = 5}, /*has_room=*/false);
  EXPECT_FALSE(without.is_open());
  EXPECT_FALSE(without.is_due(5));
  const PeriodicSaves named({.is_automatic = false, .steps = 5}, /*has_room=*/false);
  EXPECT_TRUE(named.is_due(5));
  EXPECT_FALSE(named.is_open());
  const PeriodicSaves never({.is_automatic = false, .steps = 0}, /*has_room=*/true);
  EXPECT_FALSE(never.is_open());
  EXPECT_FALSE(never.is_due(5));
}

}  // namespace
}  // namespace terrace
