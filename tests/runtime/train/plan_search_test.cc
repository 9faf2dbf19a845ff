#include "runtime/train/plan_search.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "runtime/config/train_config.h"
#include "runtime/machine/machine_toml.h"
#include "runtime/train/plan_choices.h"
#include "runtime/train/plan_estimate.h"
#include "tests/runtime/temporary_directory.h"

// Searches of the fastest settings, against all settings one after another.
namespace terrace {
namespace {

using testing::HasSubstr;
using testing::Not;

struct SearchedMachine {
  const char* name;
  const char* figures;
  std::int32_t nodes = 1;
  std::vector<std::string> more = {};  // flags
};

std::ostream& operator<<(std::ostream& out, const SearchedMachine& machine) {
  return out << machine.name;
}

// Two fast devices in each node and a slow network: tensor-parallel ranks and stages are tempting.
constexpr const char* kSlowNetwork =
    "devices = 2\nbf16_flops_per_s = 2e12\ndevice_memory_bytes = 1e9\n"
    "device_memory_bytes_per_s = 200e9\nupload_bytes_per_s = 10e9\ndownload_bytes_per_s = 10e9\n"
    "node_link_bytes_per_s = 50e9\nnetwork_bytes_per_s = 50e6\nhost_memory_bytes = 4e9\n"
    "host_memory_bytes_per_s = 20e9\ncores = 8\n";
// Devices with so little memory that states must leave them.
constexpr const char* kSmallDevices =
    "devices = 4\nbf16_flops_per_s = 1e12\ndevice_memory_bytes = 12e6\n"
    "device_memory_bytes_per_s = 100e9\nupload_bytes_per_s = 2e9\ndownload_bytes_per_s = 2e9\n"
    "node_link_bytes_per_s = 10e9\nhost_memory_bytes = 2e9\nhost_memory_bytes_per_s = 20e9\n"
    "cores = 8\n";
// Processors alone: their number of ranks is a choice.
constexpr const char* kProcessors =
    "devices = 0\nbf16_flops_per_s = 200e9\nfp32_flops_per_s = 100e9\nhost_memory_bytes = 4e9\n"
    "host_memory_bytes_per_s = 20e9\ncores = 4\n";

Machine machine_of(const std::string& figures) {
  return parse_machine("schema = \"terrace.machine/1\"\nname = \"m\"\n" + figures, "m");
}

PlanOptions options_of(const std::vector<std::string>& more, std::int32_t nodes) {
  std::vector<std::string> arguments = {"--model", "nano", "--max-steps", "1"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  PlanOptions options = parse_plan_options(arguments);
  options.nodes = nodes;
  return options;
}

// Returns the shortest step over every mesh, micro-batch, ZeRO stage, recompute and order, planned
// as a training would.
double shortest_step_s(const PlanOptions& options, const Machine& machine) {
  double shortest_s = INFINITY;
  for (PlanChoice choice : PlanChoices(options, machine).divisions()) {
    for (const RecomputeChoice recompute :
         {RecomputeChoice::kAuto, RecomputeChoice::kNone, RecomputeChoice::kFull}) {
      for (const OrderChoice order : {OrderChoice::kAuto, OrderChoice::kLayerMajor}) {
        choice.recompute = recompute;
        choice.order = order;
        const PlanOutcome outcome =
            try_plan(with_choice(options, choice), machine, PlanEffort::kBrief);
        if (outcome.forecast.has_value()) {
          shortest_s = std::min(shortest_s, outcome.forecast->step_s);
        }
      }
    }
  }
  return shortest_s;
}

class SearchOn : public testing::TestWithParam<SearchedMachine> {
 protected:
  SearchOn()
      : machine_(machine_of(GetParam().figures)),
        options_(options_of(GetParam().more, GetParam().nodes)) {}

  const Machine machine_;
  const PlanOptions options_;
};

TEST_P(SearchOn, FindsStepsAsShortAsTheBestOfAllSettings) {
  const PlanSearch search = search_plans(options_, machine_);
  ASSERT_FALSE(search.best.empty());
  EXPECT_EQ(search.left, 0);
  const double found_s = search.best.front().outcome.forecast->step_s;
  EXPECT_LE(found_s, 1.01 * shortest_step_s(options_, machine_));
}

TEST_P(SearchOn, KeepsTheBatchAndTheBudgets) {
  const PlanSearch search = search_plans(options_, machine_);
  ASSERT_FALSE(search.best.empty());
  const PlanChoices choices(options_, machine_);
  for (const SearchedPlan& plan : search.best) {
    const PlanChoice& choice = plan.choice;
    EXPECT_EQ(choice.micro_batch_size * choice.micro_batches * choice.data,
              choices.global_samples());
    const RunForecast& forecast = *plan.outcome.forecast;
    EXPECT_TRUE(fits(forecast.ledger())) << describe(choice);
    EXPECT_EQ(forecast.mesh.ranks(), choice.data * choice.tensor * choice.pipeline);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Machines, SearchOn,
    testing::Values(SearchedMachine{"slow_network", kSlowNetwork, 2, {"--micro-batch-size", "2"}},
                    SearchedMachine{"small_devices", kSmallDevices, 1, {"--micro-batch-size", "2"}},
                    SearchedMachine{"processors", kProcessors, 1, {"--micro-batch-size", "4"}}),
    [](const auto& info) { return std::string(info.param.name); });

// A device with half of the memory leads to other settings, or to a longer step.
TEST(Search, TakesMemoryAsAConstraint) {
  const PlanOptions options = options_of({"--micro-batch-size", "2"}, 1);
  Machine machine = machine_of(kSmallDevices);
  const double small_s = search_plans(options, machine).best.front().outcome.forecast->step_s;
  machine.at(MachineFigure::kDeviceMemoryBytes)->value *= 32;
  const PlanSearch large = search_plans(options, machine);
  EXPECT_LT(large.best.front().outcome.forecast->step_s, 0.9 * small_s);
  machine.at(MachineFigure::kDeviceMemoryBytes)->value = 1e6;
  machine.at(MachineFigure::kHostMemoryBytes)->value = 1e6;
  TERRACE_EXPECT_THROW_WITH(search_plans(options, machine), OutOfMemory,
                            "no settings were found with which the step fits 1 node of m");
}

// Every plan needs the drive, and its rate might be all that is missing.
TEST(Search, NamesTheFigureThatIsNotKnown) {
  const TemporaryDirectory drive;
  const PlanOptions options = options_of(
      {"--micro-batch-size", "2", "--nvme", drive.path(), "--place-optimizer", "nvme"}, 1);
  TERRACE_EXPECT_THROW_WITH(search_plans(options, machine_of(kSmallDevices)), ConfigError,
                            "drive_read_bytes_per_s of the machine m is not known");
}

TEST(Search, EstimatesUnderThePowerCap) {
  const std::string machine = std::string(kSlowNetwork) + "node_watts = 1000\n";
  PlanOptions options = options_of({"--micro-batch-size", "2"}, 1);
  const auto estimate_s = [&] {
    return search_plans(options, machine_of(machine)).best.front().estimate_s;
  };
  const double full_s = estimate_s();
  options.power_cap = 600;
  EXPECT_GT(estimate_s(), 1.1 * full_s);
}

TEST(Search, LeavesGivenSettingsAlone) {
  const PlanOptions options = options_of({"--micro-batch-size", "8", "--tensor-parallel", "2",
                                          "--zero-stage", "2", "--recompute", "full"},
                                         1);
  const Machine machine = machine_of(kSmallDevices);
  const PlanSearch search = search_plans(options, machine);
  for (const SearchedPlan& plan : search.best) {
    EXPECT_EQ(plan.choice.tensor, 2);
    EXPECT_EQ(plan.choice.zero_stage, 2);
    EXPECT_EQ(plan.choice.recompute, RecomputeChoice::kFull);
  }
  const std::string toml = choice_toml(options, search.best.front().choice, "a comment");
  EXPECT_THAT(toml, HasSubstr("# a comment\n"));
  EXPECT_THAT(toml, HasSubstr("recompute = \"full\"\n"));
  EXPECT_THAT(toml, HasSubstr("zero_stage = 2\n"));
  EXPECT_THAT(toml, HasSubstr("model = \"nano\"\n"));
  EXPECT_THAT(toml, Not(HasSubstr("learning_rate")));
}

// The file sets the options that were simulated.
TEST(Search, WritesAFileThatReadsBack) {
  const PlanOptions options = options_of({"--micro-batch-size", "4"}, 1);
  PlanChoice choice;
  choice.ranks_per_node = 2;
  choice.ranks_are_threads = true;
  choice.pipeline = 2;
  choice.micro_batch_size = 1;
  choice.micro_batches = 4;
  choice.schedule = PipelineSchedule::kInterleaved;
  choice.virtual_stages = 2;
  choice.recompute = RecomputeChoice::kFull;
  choice.places[StateClass::kOptimizer] = Placement::kHost;
  const TemporaryDirectory directory;
  const std::string file = directory.write("run.toml", choice_toml(options, choice, "chosen"));
  const TrainOptions read = parse_train_options({"--config", file, "--data", "text"});
  TrainOptions expected = with_choice(options, choice).train;
  expected.ranks.local_ranks = 2;
  expected.data.data = {"text"};
  EXPECT_EQ(to_toml(read), to_toml(expected));
}

// Layers are divided by the speeds of the stages, and the estimate knows them, too.
TEST(Search, DividesLayersByTheSpeedOfDevices) {
  const PlanOptions options = options_of(
      {"--pipeline-parallel", "2", "--tensor-parallel", "2", "--gradient-accumulation-steps", "8"},
      1);
  Machine machine = machine_of(kSmallDevices);
  machine.at(MachineFigure::kDeviceMemoryBytes)->value = 1e9;
  const SearchedPlan equal = search_plans(options, machine).best.front();
  EXPECT_TRUE(equal.choice.stage_speeds.empty());
  machine.device_speeds = {1, 1, 0.5, 0.5};
  const SearchedPlan unequal = search_plans(options, machine).best.front();
  EXPECT_EQ(unequal.choice.stage_speeds, (std::vector<double>{1, 0.5}));
  const double step_s = unequal.outcome.forecast->step_s;
  EXPECT_GT(step_s, equal.outcome.forecast->step_s);
  EXPECT_GT(unequal.estimate_s, step_s / 2);
  EXPECT_LT(unequal.estimate_s, step_s * 2);
  EXPECT_THAT(choice_toml(options, unequal.choice, "chosen"),
              HasSubstr("stage_speeds = [1, 0.5]\n"));
}

TEST(Search, KeepsGivenSpeedsOfStages) {
  const PlanOptions options =
      options_of({"--pipeline-parallel", "2", "--stage-speeds", "1", "1"}, 1);
  Machine machine = machine_of(kSmallDevices);
  machine.device_speeds = {1, 1, 0.5, 0.5};
  for (const PlanChoice& choice : PlanChoices(options, machine).divisions()) {
    EXPECT_EQ(choice.pipeline, 2);
    EXPECT_EQ(choice.stage_speeds, (std::vector<double>{1, 1}));
  }
}

// Estimates only order the plans, but an order that is wrong by far would hide the best.
TEST(Search, EstimatesWithinAFactorOfTwo) {
  const PlanOptions options = options_of({"--micro-batch-size", "2"}, 2);
  const Machine machine = machine_of(kSlowNetwork);
  int compared = 0;
  for (const SearchedPlan& plan : search_plans(options, machine).best) {
    const double step_s = plan.outcome.forecast->step_s;
    EXPECT_GT(plan.estimate_s, step_s / 2) << describe(plan.choice);
    EXPECT_LT(plan.estimate_s, step_s * 2) << describe(plan.choice);
    ++compared;
  }
  EXPECT_GT(compared, 0);
}

}  // namespace
}  // namespace terrace
