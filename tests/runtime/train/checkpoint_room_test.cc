#include "runtime/train/checkpoint_room.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "base/bytes.h"
#include "base/error.h"
#include "tests/runtime/temporary_directory.h"

namespace terrace {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr SaveInterval kAutomaticSaves = {.is_automatic = true, .steps = 0};

// Returns the space that a run of 100 steps needs, with checkpoints of 10 MiB and a result of 4
// MiB.
SavingNeed need_of(const SaveInterval& interval, std::optional<std::uint64_t> free_mib) {
  SavingNeed need;
  need.interval = interval;
  need.steps = {.done = 0, .last = 100, .total = 100};
  need.checkpoint_bytes = 10 * kMiB;
  need.result_bytes = 4 * kMiB;
  if (free_mib.has_value()) need.free_bytes = *free_mib * kMiB;
  return need;
}

SaveInterval every(std::int64_t steps) { return {.is_automatic = false, .steps = steps}; }

TEST(CheckpointRoom, AutomaticOnesAreTwoAndTheOneThatIsWritten) {
  for (const auto& free_mib : {std::optional<std::uint64_t>(30), std::optional<std::uint64_t>()}) {
    const SavingPlan plan = plan_saving(need_of(kAutomaticSaves, free_mib));
    EXPECT_EQ(plan.kept_automatic, 2);
    EXPECT_THAT(plan.doubts, IsEmpty());
  }
  EXPECT_THAT(describe_saving(need_of(kAutomaticSaves, 30), {2, {}}, "runs/a"),
              "saves the state about every 15 minutes (--checkpoint-every auto): 10.0 MiB each, "
              "keeping the last 2, 30.0 MiB free in runs/a");
}

TEST(CheckpointRoom, AutomaticOnesAreFewerOrNoneWhereTheDriveHasLess) {
  const SavingPlan one = plan_saving(need_of(kAutomaticSaves, 29));
  EXPECT_EQ(one.kept_automatic, 1);
  EXPECT_THAT(one.doubts, ElementsAre(HasSubstr("auto keeps 1 of its checkpoints instead of 2")));
  const SavingPlan none = plan_saving(need_of(kAutomaticSaves, 19));
  EXPECT_EQ(none.kept_automatic, 0);
  EXPECT_THAT(none.doubts, ElementsAre(HasSubstr("auto saves nothing before this run ends")));
  EXPECT_EQ(describe_saving(need_of(kAutomaticSaves, 19), none, "runs/a"),
            "saves only when the run ends");
}

// The previous run's checkpoints leave room for new ones, because they are removed.
TEST(CheckpointRoom, AutomaticOnesTakeThePlaceOfThoseThatAreThere) {
  SavingNeed need = need_of(kAutomaticSaves, 11);
  need.removable = 2;
  EXPECT_EQ(plan_saving(need).kept_automatic, 2);
}

// If only a small part of a model trains, its result is larger than its checkpoints.
TEST(CheckpointRoom, AutomaticOnesLeaveRoomForTheResult) {
  SavingNeed need = need_of(kAutomaticSaves, 60);
  need.result_bytes = 45 * kMiB;
  EXPECT_EQ(plan_saving(need).kept_automatic, 1);
  need.free_bytes = 65 * kMiB;
  EXPECT_EQ(plan_saving(need).kept_automatic, 2);
}

TEST(CheckpointRoom, KeepLastSaysHowManyAutomaticOnesAreKept) {
  SavingNeed need = need_of(kAutomaticSaves, 60);
  need.keep_last = 5;
  EXPECT_EQ(plan_saving(need).kept_automatic, 5);
  need.free_bytes = 45 * kMiB;
  EXPECT_EQ(plan_saving(need).kept_automatic, 3);
}

TEST(CheckpointRoom, ANumberOfStepsWhoseFirstCheckpointFindsNoRoomIsRefused) {
  TERRACE_EXPECT_THROW_WITH(
      plan_saving(need_of(every(10), 9)), OutOfMemory,
      "--checkpoint-every 10: a checkpoint takes 10.0 MiB, but only 9.00 MiB are "
      "free");
  EXPECT_NO_THROW(plan_saving(need_of(every(101), 9))) << "no step of the run is due";
  EXPECT_NO_THROW(plan_saving(need_of(every(0), 9)));
}

TEST(CheckpointRoom, ANumberOfStepsThatFillsTheDriveIsDoubted) {
  EXPECT_THAT(plan_saving(need_of(every(10), 100)).doubts, IsEmpty());
  EXPECT_THAT(plan_saving(need_of(every(10), 99)).doubts,
              ElementsAre(HasSubstr("10 checkpoints of 10.0 MiB need more than the 99.0 MiB")));
  SavingNeed few = need_of(every(10), 30);
  few.keep_last = 2;
  EXPECT_THAT(plan_saving(few).doubts, IsEmpty());
  EXPECT_THAT(describe_saving(few, {}, "runs/a"),
              "saves the state every 10 steps: 10 checkpoints of 10.0 MiB, 30.0 MiB free in "
              "runs/a");
}

TEST(CheckpointRoom, WhatIsWrittenAtTheEndIsLookedAt) {
  EXPECT_THAT(plan_saving(need_of(every(0), 3)).doubts,
              ElementsAre(HasSubstr("final/ takes about 4.00 MiB when the run ends")));
  SavingNeed stopped = need_of(every(0), 5);
  stopped.steps.last = 50;
  EXPECT_THAT(plan_saving(stopped).doubts,
              ElementsAre(HasSubstr("its checkpoint takes about 10.0 MiB")));
}

TEST(CheckpointRoom, IsThatOfTheDirectoryAboveOneThatIsNotThere) {
  const TemporaryDirectory directory;
  const ModelConfig config = load_model_config("nano");
  const std::vector<UnitLayout> layout = parameter_layout(config);
  const TrainOptions options;
  const SavingNeed need = saving_need({.options = options,
                                       .run_dir = directory.path("not/there/yet"),
                                       .model = {config, layout, *update_rules().front()},
                                       .result_types = {.usual = DType::kBF16}});
  ASSERT_TRUE(need.free_bytes.has_value());
  EXPECT_LT(0U, *need.free_bytes);
  EXPECT_EQ(need.interval, kAutomaticSaves);
  EXPECT_LT(12U * 803'968U, need.checkpoint_bytes);
  EXPECT_LT(need.checkpoint_bytes, 13U * 803'968U);
  EXPECT_LT(2U * 803'968U, need.result_bytes);
  EXPECT_LT(need.result_bytes, 3U * 803'968U);
}

// Here the state in the NVMe tier lies on the same drive as the checkpoints.
TEST(CheckpointRoom, OfADriveIsLessWhatTheStepTakesThere) {
  const TemporaryDirectory directory;
  const ModelConfig config = load_model_config("nano");
  const std::vector<UnitLayout> layout = parameter_layout(config);
  TrainOptions options;
  options.tiers.nvme = {{directory.path(), std::nullopt}};
  const SavingNeed need = saving_need({.options = options,
                                       .run_dir = directory.path("run"),
                                       .model = {config, layout, *update_rules().front()},
                                       .result_types = {},
                                       .nvme_bytes = std::uint64_t{1} << 62});
  EXPECT_EQ(need.free_bytes, 0U);
}

// The budget also covers the memory through which state passes on its way into a checkpoint.
TEST(CheckpointRoom, StagingTakesWhatTheBudgetLeaves) {
  Ledger ledger;
  ledger[Tier::kHost].peak_bytes = 60 * kMiB;
  EXPECT_EQ(staging_room(ledger, 100 * kMiB), 50 * kMiB);
  ledger[Tier::kHost].budget_bytes = 100 * kMiB;
  EXPECT_EQ(staging_room(ledger, 100 * kMiB), 40 * kMiB);
  EXPECT_EQ(staging_room(ledger, 60 * kMiB), 30 * kMiB);
  ledger[Tier::kHost].peak_bytes = 100 * kMiB;
  EXPECT_EQ(staging_room(ledger, 100 * kMiB), 0U);
}

}  // namespace
}  // namespace terrace
