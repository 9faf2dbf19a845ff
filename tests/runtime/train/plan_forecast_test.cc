#include "runtime/train/plan_forecast.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "runtime/machine/machine_toml.h"
#include "runtime/train/plan_table.h"
#include "tests/runtime/temporary_directory.h"

// The limits, the price and the table cells of plans.
namespace terrace {
namespace {

Machine processors() {
  return parse_machine(
      "schema = \"terrace.machine/1\"\nname = \"m\"\ndevices = 0\nbf16_flops_per_s = 200e9\n"
      "host_memory_bytes = 4e9\nhost_memory_bytes_per_s = 20e9\ncores = 4\n"
      "price_per_node_hour = 2\n",
      "m");
}

PlanOptions options_of(const std::vector<std::string>& more) {
  std::vector<std::string> arguments = {"--model", "nano", "--max-steps", "100"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return parse_plan_options(arguments);
}

TEST(PlannedRanks, AreRefusedBeyondAMillion) {
  const PlanOptions options = options_of({"--local-ranks", "65536", "--nodes", "65536"});
  TERRACE_EXPECT_THROW_WITH(planned_ranks_per_node(options, processors()), ConfigError,
                            "65536 nodes of 65536 ranks are more than 1048576 ranks");
}

TEST(PlannedCost, TakesThePriceOfTheMachineUnlessAnotherIsGiven) {
  const auto price_of = [](const PlanOptions& options) {
    const PlannedRun run(options, processors(), PlanEffort::kBrief);
    const RunForecast forecast = run.forecast(run.plan_stages(), processors());
    const RunCost cost = cost_of_run(forecast, run.machine(), options);
    return cost.price.value() / (cost.seconds / 3600);
  };
  EXPECT_DOUBLE_EQ(price_of(options_of({})), 2);
  EXPECT_DOUBLE_EQ(price_of(options_of({"--price-per-node-hour", "3"})), 3);
}

// Two devices, the second of which has this speed.
Machine two_devices(double second) {
  return parse_machine(
      "schema = \"terrace.machine/1\"\nname = \"m\"\ndevices = 2\ndevice_speeds = [1, " +
          std::to_string(second) +
          "]\nbf16_flops_per_s = 1e13\ndevice_memory_bytes = 8e10\n"
          "device_memory_bytes_per_s = 1e12\nupload_bytes_per_s = 1e10\n"
          "download_bytes_per_s = 1e10\nnode_link_bytes_per_s = 1e11\nhost_memory_bytes = 1e11\n"
          "host_memory_bytes_per_s = 1e11\ncores = 8\n",
      "m");
}

RunForecast forecast_of(const std::vector<std::string>& more, const Machine& machine) {
  std::vector<std::string> arguments = {"--model",
                                        "gpt2-124m",
                                        "--max-steps",
                                        "1",
                                        "--sequence-length",
                                        "256",
                                        "--gradient-accumulation-steps",
                                        "16"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  const PlanOptions options = parse_plan_options(arguments);
  const PlannedRun run(options, machine, PlanEffort::kBrief);
  return run.forecast(run.plan_stages(), machine);
}

// With layers divided by speed, both stages compute for about the same time.
TEST(PlannedStages, OfUnequalSpeedGetUnequalWork) {
  for (const char* schedule : {"1f1b", "interleaved"}) {
    const std::vector<std::string> stages = {"--pipeline-parallel", "2", "--pipeline-schedule",
                                             schedule};
    std::vector<std::string> equally = stages;
    for (const char* word : {"--stage-speeds", "1", "1"}) equally.emplace_back(word);
    const Machine machine = two_devices(0.5);
    const RunForecast by_speed = forecast_of(stages, machine);
    const RunForecast alike = forecast_of(equally, machine);
    EXPECT_LT(by_speed.step_s, 0.85 * alike.step_s);
    EXPECT_LT(by_speed.bubble_share, alike.bubble_share - 0.05);
    EXPECT_GT(by_speed.mfu(), alike.mfu());
    EXPECT_EQ(by_speed.stages.at(1).speed, 0.5);
    EXPECT_LT(by_speed.stages.at(1).units, alike.stages.at(1).units);
  }
}

TEST(PlannedStages, AreCountedAtTheSpeedsOfTheirDevices) {
  const std::vector<std::string> stages = {"--pipeline-parallel", "2"};
  const RunForecast equal = forecast_of(stages, two_devices(1));
  const RunForecast unequal = forecast_of(stages, two_devices(0.5));
  EXPECT_FALSE(equal.has_unequal_stages());
  EXPECT_DOUBLE_EQ(equal.peak_flops_per_s, 2e13);
  EXPECT_DOUBLE_EQ(unequal.peak_flops_per_s, 1.5e13);
  EXPECT_EQ(equal.model_flops, unequal.model_flops);
  // Data-parallel ranks wait for the slower one.
  EXPECT_NEAR(forecast_of({}, two_devices(0.5)).step_s / forecast_of({}, two_devices(1)).step_s,
              1.9, 0.1);
}

TEST(PlanCells, HaveThreeDigits) {
  EXPECT_EQ(seconds_cell(0.01234), "12.3 ms");
  EXPECT_EQ(seconds_cell(0.9994), "999 ms");
  EXPECT_EQ(seconds_cell(0.9996), "1 s");
  EXPECT_EQ(seconds_cell(999.4), "999 s");
  EXPECT_EQ(seconds_cell(999.6), "1000 s");
  EXPECT_EQ(count_cell(85060), "85.1k");
}

}  // namespace
}  // namespace terrace
