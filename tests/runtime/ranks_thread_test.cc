#include <gtest/gtest.h>

#include "tests/runtime/ranks_fixture.h"

// Where the threads of ranks meet: small, for the sanitizers. ranks_test.cc compares bits.
namespace terrace {
namespace {

EngineOptions options_for(std::int32_t micro_batches) {
  EngineOptions options = tiny_options(tiny_model(ModelFamily::kLlama, true, true), DType::kF32);
  options.placement.micro_batches = micro_batches;
  options.chunk_elements = 8 * kBlockElements;
  return options;
}

void expect_one_curve(const RankedRun& run) {
  for (const Curve& curve : run.curves) EXPECT_EQ(curve, run.curves.front());
  EXPECT_EQ(run.curves.front().losses.size(), static_cast<std::size_t>(kSteps));
}

TEST(RankThreads, EveryStageTrains) {
  const EngineOptions options = options_for(2);
  const RankedRun plain = train_ranks(options, 2, 0);
  expect_one_curve(plain);
  for (const std::int32_t stage : {1, 2, 3}) {
    const RankedRun run = train_ranks(options, 2, stage);
    expect_one_curve(run);
    EXPECT_EQ(run.state, plain.state) << stage;
  }
}

TEST(RankThreads, StagesOfAPipelineTrainWithTheirStateOnTheDrive) {
  const EngineOptions options = options_for(3);
  const RankedRun plain = train_ranks(options, 2, 1);
  const TemporaryDirectory drive;
  EngineOptions away = options;
  all_on(away, false, Tier::kNvme);
  away.nvme.directories = {{drive.path(), std::nullopt}};
  const RankedRun run = train_ranks(away, MeshShape{2, 1, 2}, 3);
  expect_one_curve(run);
  EXPECT_EQ(run.state, plain.state);
}

// Two tensor ranks in each of two stages; the lanes of exchanges and messages at once.
TEST(RankThreads, TensorRanksOfStagesTrainWithTheirStateOnTheDrive) {
  EngineOptions options = tiny_options(tiny_model(ModelFamily::kGpt2, true, false), DType::kF32);
  options.placement.micro_batches = 2;
  options.chunk_elements = 8 * kBlockElements;
  const MeshShape shape = {1, 2, 2};
  const RankedRun plain = train_ranks(options, shape, 0);
  expect_one_curve(plain);
  const TemporaryDirectory drive;
  all_on(options, false, Tier::kNvme);
  options.placement.recompute = true;
  options.nvme.directories = {{drive.path(), std::nullopt}};
  const RankedRun away = train_ranks(options, shape, 0);
  expect_one_curve(away);
  EXPECT_EQ(away.state, plain.state);
}

// Every message lane of a stage is at work.
TEST(RankThreads, InterleavedStagesTrain) {
  EngineOptions options = options_for(4);
  const RankedRun plain = train_ranks(options, 2, 1);
  options.pipeline_schedule = PipelineSchedule::kInterleaved;
  options.virtual_stages = 2;
  const RankedRun run = train_ranks(options, MeshShape{2, 1, 2}, 2);
  expect_one_curve(run);
  EXPECT_EQ(run.state, plain.state);
}

}  // namespace
}  // namespace terrace
