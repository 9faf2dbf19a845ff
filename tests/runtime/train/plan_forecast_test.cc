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
