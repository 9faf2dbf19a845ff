#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>

#include "tests/e2e/tiny_training.h"

// Runs with each value of --optimizer: the files that they save, and the runs that go on with them.
namespace terrace {
namespace {

using testing::HasSubstr;

struct Optimizer {
  std::string name;
  std::vector<std::string> slots;  // as checkpoints name their files
  Arguments settings;

  friend std::ostream& operator<<(std::ostream& out, const Optimizer& optimizer) {
    return out << optimizer.name;
  }
};

class OptimizerRuns : public testing::TestWithParam<Optimizer> {
 protected:
  Arguments arguments(const Arguments& more = {}) const {
    return Arguments{"--optimizer", GetParam().name, "--max-steps", "6"} + GetParam().settings +
           more;
  }
  Arguments on_drive() const {
    return training_.nvme() + Arguments{"--place-optimizer", "nvme", "--place-parameters", "nvme"};
  }

  const TinyTraining training_;
};

TEST_P(OptimizerRuns, GoOnFromACheckpointWithTheSameBits) {
  training_.train("whole", arguments({"--checkpoint-every", "3"}));
  training_.train("stopped", arguments(on_drive() + Arguments{"--stop-after-step", "3"}));
  training_.train("stopped", arguments({"--resume", "auto"}));
  training_.expect_same("stopped", "whole", "final");
}

// A run can also go on from a state that other ranks have saved. Its sums over ranks then have
// another order.
TEST_P(OptimizerRuns, GoOnOnOtherRanks) {
  const Arguments exact = {"--precision", "fp32"};
  training_.train("whole", arguments(exact + Arguments{"--gradient-accumulation-steps", "4"}));
  training_.train("ranks", arguments(exact + Arguments{"--local-ranks", "2", "--zero-stage", "3",
                                                       "--stop-after-step", "3"}));
  training_.train("ranks", arguments(exact + Arguments{"--gradient-accumulation-steps", "4",
                                                       "--resume", "auto"}));
  expect_near(training_.rows("ranks"), training_.rows("whole"), 1e-4);
}

TEST_P(OptimizerRuns, SaveWhatTheirRuleKeeps) {
  training_.train("run", arguments({"--checkpoint-every", "6"}));
  std::map<std::string, std::string> files = training_.files("run", "checkpoint-6");
  const auto manifest = nlohmann::json::parse(files.at("manifest.json"));
  EXPECT_EQ(manifest["optimizer"], GetParam().name);
  std::vector<std::string> fields = GetParam().slots;
  fields.emplace_back("master");
  std::size_t expected = 2;  // manifest.json and config.json
  for (const std::string& field : fields) {
    for (int unit = 0; unit < 4; ++unit) {
      EXPECT_TRUE(files.contains(field + "-0000" + std::to_string(unit) + ".safetensors")) << field;
      ++expected;
    }
  }
  EXPECT_EQ(files.size(), expected);
}

TEST_P(OptimizerRuns, RefuseTheStateOfAnother) {
  training_.train("run", arguments({"--stop-after-step", "3"}));
  const std::string other = GetParam().name == "sgd" ? "lion" : "sgd";
  const Outcome outcome = run_program(
      training_.command("run", {"--optimizer", other, "--max-steps", "6", "--resume", "auto"}));
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.errors, HasSubstr("--optimizer " + GetParam().name));
  EXPECT_EQ(training_.last_committed("run"), 3);
}

TEST_P(OptimizerRuns, RefuseTheSettingsOfAnother) {
  const std::string flag = GetParam().name == "sgd" ? "--lion-beta1" : "--sgd-momentum";
  const Outcome outcome = run_program(training_.command("run", arguments({flag, "0.5"})));
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.errors, HasSubstr("not a setting of --optimizer " + GetParam().name));
}

INSTANTIATE_TEST_SUITE_P(
    All, OptimizerRuns,
    testing::Values(Optimizer{"adamw", {"exp_avg", "exp_avg_sq"}, {"--adam-beta2", "0.99"}},
                    Optimizer{"lion", {"exp_avg"}, {"--lion-beta2", "0.98"}},
                    Optimizer{"sgd", {"momentum_buffer"}, {"--learning-rate", "0.05"}}),
    [](const auto& instance) { return instance.param.name; });

}  // namespace
}  // namespace terrace
