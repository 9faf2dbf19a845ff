#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/e2e/tiny_training.h"
#include "tests/runtime/temporary_directory.h"

// Plans beside each other: --sweep, --what-helps and --auto.
namespace terrace {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::SizeIs;
using testing::StartsWith;

constexpr const char* kNode =
    "schema = \"terrace.machine/1\"\nname = \"small\"\nabout = \"two small devices\"\ndevices = 2\n"
    "device_memory_bytes = 67_108_864\ndevice_memory_bytes_per_s = 200e9\nbf16_flops_per_s = "
    "1e12\nproduct_share = 0.5\nupload_bytes_per_s = 10e9\ndownload_bytes_per_s = 10e9\n"
    "node_link_bytes_per_s = 20e9\nnetwork_bytes_per_s = 1e8\nhost_memory_bytes = 1_073_741_824\n"
    "host_memory_bytes_per_s = 20e9\ncores = 8\n";

std::vector<std::string> lines_of(const std::string& text) {
  std::istringstream in(text);
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

class PlanComparison : public testing::Test {
 protected:
  PlanComparison() : file_(directory_.write("small.toml", kNode)) {}

  Outcome run(const Arguments& more) const {
    return run_program(
        Arguments{"plan", "--model", "nano", "--profile", file_, "--max-steps", "1"} + more);
  }
  json document(const Arguments& more) const {
    const Outcome outcome = run(more + Arguments{"--json"});
    EXPECT_EQ(outcome.code, 0) << outcome;
    return json::parse(outcome.output, nullptr, false);
  }
  static json result_of(const json& document, const std::string& name) {
    for (const json& result : document.value("results", json::array())) {
      if (result.value("name", "") == name) return result;
    }
    ADD_FAILURE() << "no result " << name;
    return json::object();
  }
  double step_s(const Arguments& more) const {
    return result_of(document(more), "step").value("step_s", 0.0);
  }

  const TemporaryDirectory directory_;
  const std::string file_;
};

TEST_F(PlanComparison, SweepsEveryCombination) {
  const Arguments sweep = {"--sweep",        "micro-batch-size=1,512", "--sweep",
                           "zero-stage=1,3", "--host-memory",          "32MiB"};
  const Outcome text = run(sweep);
  EXPECT_EQ(text.code, 0) << text;
  const std::vector<std::string> lines = lines_of(text.output);
  EXPECT_THAT(lines, SizeIs(testing::Ge(5U)));
  for (const std::string& line : lines) EXPECT_LE(line.size(), 80U) << line;
  EXPECT_THAT(text.output, HasSubstr("no room: "));
  EXPECT_THAT(text.output, HasSubstr("tokens/s"));

  const json plans = document(sweep);
  EXPECT_EQ(plans["schema"], "terrace.plan_sweep/1");
  ASSERT_EQ(plans["results"].size(), 4U);
  const json& second = plans["results"][1];
  EXPECT_EQ(second["flags"]["micro-batch-size"], "1");
  EXPECT_EQ(second["flags"]["zero-stage"], "3");
  EXPECT_DOUBLE_EQ(second["step_s"], step_s({"--micro-batch-size", "1", "--zero-stage", "3",
                                             "--host-memory", "32MiB"}));
  const json& third = plans["results"][2];
  EXPECT_EQ(third["fits"], false);
  EXPECT_EQ(third["lacks_memory"], true);
  EXPECT_THAT(third["reason"].get<std::string>(), HasSubstr("needs"));

  const Outcome csv = run(sweep + Arguments{"--csv"});
  const std::vector<std::string> rows = lines_of(csv.output);
  ASSERT_THAT(rows, SizeIs(5U)) << csv;
  EXPECT_THAT(rows[0], StartsWith("micro-batch-size,zero-stage,step_s,tokens_per_s,mfu"));
  EXPECT_THAT(rows[1], StartsWith("1,1,"));
  EXPECT_THAT(rows[4], StartsWith("512,3,,,,"));
}

// A value that the model or the mesh rules out is a row, too; one that no flag takes is an error.
TEST_F(PlanComparison, KeepsRefusalsOfASweepInTheirRows) {
  const json plans = document({"--sweep", "tensor-parallel=2,3", "--nodes", "2"});
  ASSERT_EQ(plans["results"].size(), 2U);
  EXPECT_EQ(plans["results"][0]["fits"], true);
  EXPECT_EQ(plans["results"][1]["fits"], false);
  EXPECT_EQ(plans["results"][1]["lacks_memory"], false);
  const Outcome value = run({"--sweep", "zero-stage=1,7"});
  EXPECT_EQ(value.code, 2) << value;
  EXPECT_THAT(value.errors, HasSubstr("--zero-stage 7"));
}

TEST_F(PlanComparison, RefusesSweepsThatCannotBe) {
  const auto refusal = [&](const Arguments& more) {
    const Outcome outcome = run(more);
    EXPECT_EQ(outcome.code, 2) << outcome;
    return outcome.errors;
  };
  EXPECT_THAT(refusal({"--sweep", "zero-stag=1"}), HasSubstr("did you mean zero-stage?"));
  EXPECT_THAT(refusal({"--sweep", "zero-stage"}), HasSubstr("there are no values"));
  EXPECT_THAT(refusal({"--sweep", "zero-stage=1,,2"}), HasSubstr("a value is empty"));
  EXPECT_THAT(refusal({"--sweep", "json=on"}), HasSubstr("changes no plan"));
  EXPECT_THAT(refusal({"--sweep", "seed=1,2", "--seed", "3"}), HasSubstr("--seed is swept"));
  EXPECT_THAT(refusal({"--csv"}), HasSubstr("--csv without --sweep"));
  EXPECT_THAT(refusal({"--sweep", "seed=1", "--auto", "x"}), HasSubstr("cannot be combined"));
  std::string numbers = "1";
  for (int n = 2; n <= 40; ++n) numbers += fmt::format(",{}", n);
  EXPECT_THAT(refusal({"--sweep", "seed=" + numbers, "--sweep", "nodes=" + numbers}),
              HasSubstr("1600 combinations, more than 1000"));
}

// A gain is the time of the plan against the time on the changed machine.
TEST_F(PlanComparison, SaysWhatWouldHelp) {
  const Arguments common = {"--nodes", "4"};
  const double plain_s = step_s(common);
  const json gains = result_of(document(common + Arguments{"--what-helps"}), "gains");
  double network = 0;
  double before = INFINITY;
  for (const json& gain : gains["changes"]) {
    const double times = gain["times_as_fast"];
    EXPECT_GE(times, 1.02);
    EXPECT_LE(times, before);
    before = times;
    if (gain["change"] == "a network between nodes that is twice as fast") network = times;
  }
  std::string faster = kNode;
  const std::string rate = "network_bytes_per_s = 1e8";
  faster.replace(faster.find(rate), rate.size(), "network_bytes_per_s = 2e8");
  directory_.write("small.toml", faster);
  EXPECT_NEAR(network, plain_s / step_s(common), 1e-6);
  const Outcome text = run(common + Arguments{"--what-helps"});
  EXPECT_THAT(text.output, HasSubstr("a network between nodes that is twice as fast: 1."));
  EXPECT_THAT(text.output, HasSubstr("what would help, of the machine:"));
}

// More memory helps where memory was short, also where the user has set the budget.
TEST_F(PlanComparison, CountsMoreMemory) {
  const Arguments tight = {"--device-memory", "11MiB", "--micro-batch-size", "4"};
  const json gains = result_of(document(tight + Arguments{"--what-helps"}), "gains");
  bool has_memory = false;
  for (const json& gain : gains["changes"]) {
    const std::string change = gain["change"];
    has_memory = has_memory || change == "11.0 MiB more device memory for each rank";
  }
  EXPECT_TRUE(has_memory) << gains;
}

TEST_F(PlanComparison, ExplainsUnits) {
  const Outcome plain = run({"--explain", "head"});
  EXPECT_EQ(plain.code, 0) << plain;
  EXPECT_THAT(plain.output, HasSubstr("reasons for the head:"));
  const Outcome last = run({"--explain", "head", "--nodes", "2", "--pipeline-parallel", "4"});
  EXPECT_THAT(last.output, HasSubstr("pipeline stage 3: reasons for the head:"));
  const Outcome none = run({"--explain", "9"});
  EXPECT_EQ(none.code, 2) << none;
  EXPECT_THAT(none.errors, HasSubstr("no such unit"));
  const json reasons = result_of(document({}), "reasons");
  EXPECT_EQ(reasons["reasons"]["units"].size(), 6U);  // embedding, four blocks, head
}

TEST_F(PlanComparison, RefusesAResultThatItCannotWrite) {
  const Outcome nowhere = run({"--auto", directory_.path("no/chosen.toml")});
  EXPECT_EQ(nowhere.code, 2) << nowhere;
  EXPECT_THAT(nowhere.errors, HasSubstr("there is no directory"));
  const std::string own = directory_.path("own.toml");
  directory_.write("own.toml", "max_steps = 3\n");
  const Outcome lost = run({"--auto", own});
  EXPECT_EQ(lost.code, 2) << lost;
  EXPECT_THAT(lost.errors, HasSubstr("no search has written it"));
}

// The reason is named where it is not memory.
TEST_F(PlanComparison, NamesAFigureThatASearchLacks) {
  const Outcome outcome = run({"--auto", directory_.path("chosen.toml"), "--power-cap", "1"});
  EXPECT_EQ(outcome.code, 2) << outcome;
  EXPECT_THAT(outcome.errors, HasSubstr("node_watts"));
}

// The file of a search is one that a training takes, and its plan is the one that was printed.
TEST_F(PlanComparison, WritesAConfigurationForTrainings) {
  const TinyTraining training;
  const std::string chosen = directory_.path("chosen.toml");
  const json search =
      document({"--auto", chosen, "--gradient-accumulation-steps", "8", "--learning-rate", "1e-3"});
  EXPECT_EQ(search["schema"], "terrace.plan_search/1");
  ASSERT_GT(search["results"].size(), 0U);
  const double step_s = search["results"][0]["step_s"];
  const Outcome again = run_program({"plan", "--profile", file_, "--config", chosen, "--json"});
  ASSERT_EQ(again.code, 0) << again;
  EXPECT_DOUBLE_EQ(result_of(json::parse(again.output), "step").value("step_s", 0.0), step_s);

  // The file says how many ranks the node has, too.
  const Outcome dry =
      run_program({"train", "--config", chosen, "--data", training.path("text.txt"), "--dry-run"});
  EXPECT_EQ(dry.code, 0) << dry;
  const Outcome text = run({"--auto", chosen});
  EXPECT_EQ(text.code, 0) << text;
  for (const std::string& line : lines_of(text.output)) {
    if (line.starts_with("wrote")) continue;  // names a path
    EXPECT_LE(line.size(), 80U) << line;
  }
}

// Stages on devices of unequal speed get unequal work, in the plan and in a training that takes the
// file.
TEST_F(PlanComparison, WritesTheSpeedsOfStages) {
  const TinyTraining training;
  std::string unequal = kNode;
  const std::string devices = "devices = 2\n";
  unequal.replace(unequal.find(devices), devices.size(), devices + "device_speeds = [1, 0.5]\n");
  directory_.write("small.toml", unequal);
  const std::string chosen = directory_.path("chosen.toml");
  const json search = document({"--auto", chosen, "--pipeline-parallel", "2", "--pipeline-schedule",
                                "1f1b", "--gradient-accumulation-steps", "8"});
  const double step_s = search["results"][0]["step_s"];
  const json plan =
      json::parse(run_program({"plan", "--profile", file_, "--config", chosen, "--json"}).output);
  EXPECT_DOUBLE_EQ(result_of(plan, "step").value("step_s", 0.0), step_s);
  const json stages = result_of(plan, "stages");
  EXPECT_EQ(stages["speeds"], json({1.0, 0.5}));
  EXPECT_GT(stages["units"][0], stages["units"][1]);
  const Outcome text = run_program({"plan", "--profile", file_, "--config", chosen});
  EXPECT_THAT(text.output, HasSubstr("stages run at speeds 1, 0.5 and have "));
  const Outcome dry =
      run_program({"train", "--config", chosen, "--data", training.path("text.txt"), "--dry-run"});
  EXPECT_EQ(dry.code, 0) << dry;
  const std::string second = stages["units"][0].dump();
  EXPECT_THAT(dry.output, HasSubstr("2 pipeline stages, from units 0, " + second + " on"));
}

}  // namespace
}  // namespace terrace
