#include "runtime/train/forecast_growth.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "runtime/config/train_config.h"
#include "runtime/machine/machine_toml.h"
#include "runtime/train/plan_forecast.h"

// Forecasts that grow from two shorter steps, beside forecasts of whole steps.
namespace terrace {
namespace {

// Four devices in each node and a network that is no faster than a drive.
constexpr const char* kNode =
    "schema = \"terrace.machine/1\"\nname = \"m\"\ndevices = 4\nbf16_flops_per_s = 2e12\n"
    "device_memory_bytes = 1e9\ndevice_memory_bytes_per_s = 200e9\nupload_bytes_per_s = 10e9\n"
    "download_bytes_per_s = 10e9\nnode_link_bytes_per_s = 50e9\nnetwork_bytes_per_s = 1e9\n"
    "host_memory_bytes = 4e9\nhost_memory_bytes_per_s = 20e9\ncores = 8\n";

RunForecast forecast_of(std::vector<std::string> arguments, std::int32_t micro_batches) {
  arguments.insert(arguments.end(),
                   {"--model", "nano", "--max-steps", "1", "--gradient-accumulation-steps",
                    std::to_string(micro_batches)});
  PlanOptions options = parse_plan_options(arguments);
  options.nodes = 2;
  const Machine machine = parse_machine(kNode, "m");
  const PlannedRun run(options, machine, PlanEffort::kBrief);
  return run.forecast(run.plan_steps(), machine);
}

struct GrownPipeline {
  const char* name;
  int stages = 2;
  std::vector<std::string> more;  // flags
};

std::ostream& operator<<(std::ostream& out, const GrownPipeline& pipeline) {
  return out << pipeline.name;
}

class ForecastGrowth : public testing::TestWithParam<GrownPipeline> {
 protected:
  // Steps of at most four micro-batches for each stage are planned whole.
  RunForecast whole(int micro_batches_of_stage) const {
    return forecast_of(arguments(), micro_batches_of_stage * GetParam().stages);
  }
  std::vector<std::string> arguments() const {
    std::vector<std::string> arguments = GetParam().more;
    arguments.insert(arguments.end(), {"--pipeline-parallel", std::to_string(GetParam().stages)});
    return arguments;
  }
};

constexpr double kShare = 1e-9;  // by which sums of numbers may differ

void expect_near(double a, double b, double share = kShare) {
  EXPECT_NEAR(a, b, share * std::abs(b));
}

TEST_P(ForecastGrowth, EqualsTheForecastOfTheWholeStep) {
  const int stages = GetParam().stages;
  const ShorterSteps steps = {2 * stages, 3 * stages};
  const RunForecast grown = grow_forecast({whole(2), whole(3)}, steps, 4 * stages);
  const RunForecast expected = whole(4);
  expect_near(grown.step_s, expected.step_s);
  expect_near(grown.bubble_share, expected.bubble_share);
  expect_near(grown.model_flops, expected.model_flops);
  ASSERT_EQ(grown.stages.size(), expected.stages.size());
  for (std::size_t s = 0; s < expected.stages.size(); ++s) {
    const StageForecast& stage = expected.stages[s];
    expect_near(grown.stages[s].step_s, stage.step_s);
    expect_near(grown.stages[s].flops.necessary, stage.flops.necessary);
    for (std::size_t l = 0; l < kLaneCount; ++l) {
      expect_near(grown.stages[s].bytes[l], stage.bytes[l]);
      expect_near(grown.stages[s].busy_share[l], stage.busy_share[l]);
    }
    for (const Tier tier : kTiers) {
      EXPECT_EQ(grown.stages[s].ledger[tier].peak_bytes, stage.ledger[tier].peak_bytes);
      EXPECT_EQ(grown.stages[s].ledger[tier].charged_bytes, stage.ledger[tier].charged_bytes);
    }
  }
}

TEST_P(ForecastGrowth, TakesTheLineForLongSteps) {
  const int stages = GetParam().stages;
  ASSERT_FALSE(shorter_steps({PipelineSchedule::k1F1B, stages, 4 * stages, 1}).has_value());
  const RunForecast grown = forecast_of(arguments(), 5 * stages);
  expect_near(grown.step_s - whole(4).step_s, whole(4).step_s - whole(3).step_s, 1e-6);
  EXPECT_EQ(grown.tokens_per_step * 4, whole(4).tokens_per_step * 5);
}

INSTANTIATE_TEST_SUITE_P(
    Pipelines, ForecastGrowth,
    testing::Values(GrownPipeline{"two_stages", 2, {}}, GrownPipeline{"four_stages", 4, {}},
                    GrownPipeline{"recomputed", 2, {"--recompute", "full"}},
                    GrownPipeline{"zero_1", 4, {"--zero-stage", "1"}},
                    GrownPipeline{"tensor_parallel", 2, {"--tensor-parallel", "2"}},
                    GrownPipeline{"interleaved", 2, {"--pipeline-schedule", "interleaved"}}),
    testing::PrintToStringParamName());

TEST(ForecastGrowthOfLongSteps, RefusesAStepThatGrowsOverABudget) {
  RunForecast shorter;
  shorter.step_s = 1;
  shorter.stages.resize(1);
  TierLedger& host = shorter.stages[0].ledger[Tier::kHost];
  host.budget_bytes = 1000;
  host.peak_bytes = 400;
  RunForecast longer = shorter;
  longer.stages[0].ledger[Tier::kHost].peak_bytes = 500;
  const RunForecast fits = grow_forecast({shorter, longer}, {4, 6}, 16);
  EXPECT_EQ(fits.stages[0].ledger[Tier::kHost].peak_bytes, 1000U);
  EXPECT_THROW(grow_forecast({shorter, longer}, {4, 6}, 18), OutOfMemory);
}

TEST(ForecastGrowthOfLongSteps, PlansGpipeWhole) {
  EXPECT_FALSE(shorter_steps({PipelineSchedule::kGpipe, 2, 100, 1}).has_value());
  EXPECT_FALSE(shorter_steps({PipelineSchedule::k1F1B, 1, 100, 1}).has_value());
  EXPECT_EQ(shorter_steps({PipelineSchedule::k1F1B, 2, 100, 1}), (ShorterSteps{4, 6}));
}

}  // namespace
}  // namespace terrace
