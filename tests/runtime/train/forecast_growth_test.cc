#include "runtime/train/forecast_growth.h"

#include <gtest/gtest.h>

#include <cmath>

#include "runtime/machine/machine_toml.h"
#include "runtime/train/plan_forecast.h"
#include "tests/runtime/temporary_directory.h"

// Forecasts that grow from two shorter steps, beside forecasts of whole steps.
namespace terrace {
namespace {

// Four devices in each node and a slow network.
constexpr const char* kNode =
    "schema = \"terrace.machine/1\"\nname = \"m\"\ndevices = 4\nbf16_flops_per_s = 2e12\n"
    "device_memory_bytes = 1e9\ndevice_memory_bytes_per_s = 200e9\nupload_bytes_per_s = 10e9\n"
    "download_bytes_per_s = 10e9\nnode_link_bytes_per_s = 50e9\nnetwork_bytes_per_s = 1e9\n"
    "host_memory_bytes = 4e9\nhost_memory_bytes_per_s = 20e9\ncores = 8\n"
    "drive_bytes = 1e12\ndrive_read_bytes_per_s = 1e7\ndrive_write_bytes_per_s = 1e7\n";
// Steps of so many micro-batches for each stage are planned whole; longer ones are not.
constexpr int kWholeMost = 8;

Machine node() { return parse_machine(kNode, "m"); }

PlannedRun run_of(std::vector<std::string> arguments, int micro_batches) {
  arguments.insert(arguments.end(),
                   {"--model", "nano", "--max-steps", "1", "--gradient-accumulation-steps",
                    std::to_string(micro_batches)});
  PlanOptions options = parse_plan_options(arguments);
  options.nodes = 2;
  return PlannedRun(options, node(), PlanEffort::kBrief);
}

RunForecast forecast_of(const std::vector<std::string>& arguments, int micro_batches) {
  const PlannedRun run = run_of(arguments, micro_batches);
  return run.forecast(run.plan_steps(), node());
}

struct GrownPipeline {
  const char* name;
  int stages = 2;
  std::vector<std::string> more;  // flags
  double share = 1e-6;            // by which times may differ
};

std::ostream& operator<<(std::ostream& out, const GrownPipeline& pipeline) {
  return out << pipeline.name;
}

class ForecastGrowth : public testing::TestWithParam<GrownPipeline> {
 protected:
  // Returns the forecast with so many micro-batches for each stage.
  RunForecast forecast(int micro_batches_of_stage) const {
    return forecast_of(arguments(), micro_batches_of_stage * GetParam().stages);
  }
  std::vector<std::string> arguments() const {
    std::vector<std::string> arguments = GetParam().more;
    arguments.insert(arguments.end(), {"--pipeline-parallel", std::to_string(GetParam().stages)});
    return arguments;
  }
};

void expect_near(double a, double b, double share) { EXPECT_NEAR(a, b, share * std::abs(b)); }

TEST_P(ForecastGrowth, EqualsTheForecastOfTheWholeStep) {
  const int stages = GetParam().stages;
  const StepGrowth growth = {{2 * stages, 3 * stages}, kWholeMost * stages};
  const RunForecast grown = grow_forecast(forecast(2), forecast(3), growth);
  const RunForecast whole = forecast(kWholeMost);
  const double share = GetParam().share;
  expect_near(grown.step_s, whole.step_s, share);
  expect_near(grown.bubble_share, whole.bubble_share, 2 * share);
  expect_near(grown.model_flops, whole.model_flops, 1e-9);
  ASSERT_EQ(grown.stages.size(), whole.stages.size());
  for (std::size_t s = 0; s < whole.stages.size(); ++s) {
    const StageForecast& stage = whole.stages[s];
    EXPECT_EQ(grown.stages[s].bottleneck, stage.bottleneck);
    expect_near(grown.stages[s].flops.necessary, stage.flops.necessary, 1e-9);
    for (std::size_t l = 0; l < kLaneCount; ++l) {
      expect_near(grown.stages[s].bytes[l], stage.bytes[l], 1e-9);
      expect_near(grown.stages[s].busy_share[l], stage.busy_share[l], 2 * share);
    }
    for (const Tier tier : kTiers) {
      EXPECT_EQ(grown.stages[s].ledger[tier].peak_bytes, stage.ledger[tier].peak_bytes);
      EXPECT_EQ(grown.stages[s].ledger[tier].charged_bytes, stage.ledger[tier].charged_bytes);
    }
  }
}

TEST_P(ForecastGrowth, IsTakenForLongSteps) {
  const int stages = GetParam().stages;
  const PlannedRun run = run_of(arguments(), (kWholeMost + 1) * stages);
  EXPECT_EQ(run.plan_steps().size(), 2U);
  EXPECT_EQ(run_of(arguments(), kWholeMost * stages).plan_steps().size(), 1U);
  const RunForecast grown = forecast(kWholeMost + 1);
  expect_near(grown.step_s - forecast(kWholeMost).step_s, (grown.step_s - forecast(3).step_s) / 6,
              100 * GetParam().share);
  EXPECT_EQ(grown.tokens_per_step * kWholeMost,
            forecast(kWholeMost).tokens_per_step * (kWholeMost + 1));
}

// Nano has four blocks, an embedding and a head, so four stages are not equally long: the line
// leaves out a part of the time in which the pipeline fills.
INSTANTIATE_TEST_SUITE_P(
    Pipelines, ForecastGrowth,
    testing::Values(GrownPipeline{"two_stages", 2, {}}, GrownPipeline{"four_stages", 4, {}, 0.01},
                    GrownPipeline{"recomputed", 2, {"--recompute", "full"}},
                    GrownPipeline{"zero_1", 4, {"--zero-stage", "1"}, 0.01},
                    GrownPipeline{"tensor_parallel", 2, {"--tensor-parallel", "2"}},
                    GrownPipeline{"interleaved", 2, {"--pipeline-schedule", "interleaved"}, 0.01}),
    testing::PrintToStringParamName());

// In short steps the drive takes longer than the products, in long ones it does not.
TEST(LongPipelines, ArePlannedWholeWhereBytesMoveBetweenTiers) {
  const TemporaryDirectory drive;
  const std::vector<std::string> arguments = {
      "--pipeline-parallel", "2", "--place-optimizer", "nvme", "--nvme", drive.path()};
  EXPECT_EQ(run_of(arguments, 40).plan_steps().size(), 1U);
}

TEST(LongPipelines, ArePlannedWholeWhereTheLineGoesOverABudget) {
  PlannedStage stage;
  TierLedger& host = stage.ledger[Tier::kHost];
  host.budget_bytes = 1000;
  host.peak_bytes = 400;
  const PlannedStages shorter = {stage};
  host.peak_bytes = 500;
  const PlannedStages longer = {stage};
  EXPECT_TRUE(can_grow(shorter, longer, {{4, 6}, 16}));
  EXPECT_FALSE(can_grow(shorter, longer, {{4, 6}, 18}));
}

TEST(LongPipelines, ArePlannedWholeWhereShorterStepsRecomputeOtherwise) {
  PlannedStage stage;
  stage.flops = {.necessary = 100};
  const PlannedStages shorter = {stage};
  stage.flops = {.necessary = 150, .recomputed = 50};
  EXPECT_FALSE(can_grow(shorter, {stage}, {{4, 6}, 16}));
}

TEST(LongPipelines, ArePlannedWholeWithGpipe) {
  EXPECT_FALSE(shorter_steps({PipelineSchedule::kGpipe, 2, 100, 1}).has_value());
  EXPECT_FALSE(shorter_steps({PipelineSchedule::k1F1B, 1, 100, 1}).has_value());
  EXPECT_EQ(shorter_steps({PipelineSchedule::k1F1B, 2, 100, 1}), (ShorterSteps{4, 6}));
}

}  // namespace
}  // namespace terrace
