#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "tests/e2e/tiny_training.h"
#include "tests/runtime/temporary_directory.h"

// Plans of trainings on machines that are not here.
namespace terrace {
namespace {

using nlohmann::json;
using testing::HasSubstr;

// Two devices of 64 MiB with little host memory.
constexpr const char* kSmallNode =
    "schema = \"terrace.machine/1\"\nname = \"small\"\nabout = \"two small devices\"\ndevices = 2\n"
    "device_memory_bytes = 67_108_864\ndevice_memory_bytes_per_s = 200e9\nbf16_flops_per_s = "
    "1e12\nproduct_share = 0.5\n"
    "upload_bytes_per_s = 10e9\ndownload_bytes_per_s = 10e9\nnode_link_bytes_per_s = 20e9\n"
    "network_bytes_per_s = 1e9\nhost_memory_bytes = 1_073_741_824\n"
    "host_memory_bytes_per_s = 20e9\nnode_watts = 1000\n";

class Plan : public testing::Test {
 protected:
  Plan() : file_(directory_.write("small.toml", kSmallNode)) {}

  Outcome run(const Arguments& more) const {
    return run_program(Arguments{"plan", "--model", "nano", "--profile", file_} + more);
  }
  json document(const Arguments& more) const {
    const Outcome outcome = run(more + Arguments{"--json"});
    EXPECT_EQ(outcome.code, 0) << outcome;
    json parsed = json::parse(outcome.output, nullptr, false);
    EXPECT_TRUE(parsed.is_object()) << outcome;
    EXPECT_EQ(parsed.value("schema", ""), "terrace.plan/1");
    return parsed;
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

TEST_F(Plan, SaysWhatAStepNeedsWithoutData) {
  const json plan =
      document({"--max-steps", "100", "--price-per-node-hour", "3.6", "--grams-per-kwh", "500"});
  EXPECT_EQ(plan["machine"], "small");
  EXPECT_EQ(plan["mesh"]["ranks"], 2);
  EXPECT_EQ(plan["mesh"]["data"], 2);
  const json step = result_of(plan, "step");
  const double seconds = step["step_s"];
  EXPECT_NEAR(step["tokens_per_s"], 2 * 256 / seconds, 1e-6 / seconds);
  EXPECT_GT(step["mfu"], 0);
  EXPECT_LE(step["mfu"], 0.5);  // the share of the peak that products reach
  const json device = result_of(plan, "device");
  EXPECT_LE(device["peak_bytes"], device["budget_bytes"]);
  EXPECT_GT(device["accounts"]["parameters"], 0);
  EXPECT_GT(result_of(plan, "links")["collective"]["bytes"], 0);
  const json run = result_of(plan, "run");
  EXPECT_EQ(run["tokens"], 100 * 2 * 256);
  EXPECT_NEAR(run["seconds"], 100 * seconds, 1e-9);
  EXPECT_NEAR(run["kilowatt_hours"], 100 * seconds / 3600, 1e-9);
  EXPECT_NEAR(run["price"], 3.6 * 100 * seconds / 3600, 1e-9);
  EXPECT_NEAR(run["carbon_kg"], 0.5 * 100 * seconds / 3600, 1e-9);
}

// The time of a step follows the figures of the profile.
TEST_F(Plan, FollowsTheProfile) {
  const Arguments common = {"--max-steps", "1", "--micro-batch-size", "8"};
  const auto with = [&](const std::string& figure, const std::string& replacement) {
    std::string profile = kSmallNode;
    profile.replace(profile.find(figure), figure.size(), replacement);
    directory_.write("small.toml", profile);
  };
  const Arguments four_nodes = common + Arguments{"--nodes", "4"};
  const double plain = step_s(common);
  const double across_the_network = step_s(four_nodes);
  EXPECT_GT(across_the_network, plain);
  EXPECT_GT(step_s(common + Arguments{"--gradient-accumulation-steps", "4"}), 2 * plain);
  with("network_bytes_per_s = 1e9", "network_bytes_per_s = 1e8");
  EXPECT_GT(step_s(four_nodes), 1.2 * across_the_network);
  EXPECT_EQ(step_s(common), plain) << "one node has no network";
  with("bf16_flops_per_s = 1e12", "bf16_flops_per_s = 4e12");
  EXPECT_LT(step_s(common), 0.6 * plain);
}

TEST_F(Plan, APowerCapCostsTimeAndSavesEnergy) {
  const Arguments common = {"--max-steps", "100", "--micro-batch-size", "16"};
  const json plain = document(common);
  const json capped = document(common + Arguments{"--power-cap", "512"});
  const double slower = result_of(capped, "step").value("step_s", 0.0) /
                        result_of(plain, "step").value("step_s", 1.0);
  EXPECT_GT(slower, 1.1);
  EXPECT_LE(slower, 1.2501) << "the clock is 0.8 of that without the cap";
  EXPECT_NEAR(result_of(capped, "power_cap")["clock_share"], 0.8, 1e-9);
  EXPECT_NEAR(result_of(capped, "run")["kilowatt_hours"],
              0.512 * slower * result_of(plain, "run").value("kilowatt_hours", 0.0), 1e-9);
  const Outcome text = run(common + Arguments{"--power-cap", "512"});
  EXPECT_THAT(text.output, HasSubstr("power cap: 512 W of the 1000 W"));
  const Outcome deep = run(common + Arguments{"--power-cap", "300"});
  EXPECT_EQ(deep.code, 2) << deep;
  EXPECT_THAT(deep.errors, HasSubstr("give at least 500"));
}

TEST_F(Plan, SimulatesTheStagesOfAPipeline) {
  const json plan = document({"--max-steps", "1", "--nodes", "2", "--pipeline-parallel", "4",
                              "--gradient-accumulation-steps", "4"});
  EXPECT_EQ(plan["mesh"]["pipeline"], 4);
  EXPECT_GT(result_of(plan, "step")["bubble_share"], 0.2);
  const Outcome text = run({"--max-steps", "1", "--tensor-parallel", "2"});
  EXPECT_THAT(text.output, HasSubstr("1 data-parallel x 2 tensor-parallel x 1 stage"));
  EXPECT_THAT(text.output, HasSubstr("tensor"));
}

TEST_F(Plan, NamesTheIslandsBesideTheMesh) {
  const Arguments stage_3 = {"--max-steps", "1", "--nodes", "2", "--zero-stage", "3"};
  const Outcome whole = run(stage_3);
  EXPECT_THAT(whole.output, HasSubstr("stage, ZeRO stage 3\n"));
  const Arguments hpz = stage_3 + Arguments{"--zero-partition", "hpz"};
  const int islands = document(hpz)["mesh"]["islands"];
  const int ranks = document(hpz)["mesh"]["data"];
  ASSERT_GT(islands, 1);
  const Outcome divided = run(hpz);
  EXPECT_THAT(divided.output,
              HasSubstr(fmt::format("ZeRO stage 3, parameters sharded in each of {} islands of {} "
                                    "data-parallel ranks",
                                    islands, ranks / islands)));
}

// fp16 has a rate of its own, and fp32 masters of 4 bytes where bf16 has 2 more bytes.
TEST_F(Plan, Fp16) {
  const Arguments common = {"--max-steps", "1", "--micro-batch-size", "8"};
  const Arguments fp16 = common + Arguments{"--precision", "fp16"};
  const Outcome unknown = run(fp16);
  EXPECT_EQ(unknown.code, 2) << unknown;
  EXPECT_THAT(unknown.errors, HasSubstr("fp16_flops_per_s of the machine small is not known"));
  directory_.write("small.toml", std::string(kSmallNode) + "fp16_flops_per_s = 4e12\n");
  EXPECT_LT(step_s(fp16), 0.6 * step_s(common));
  const auto bytes_of_optimizer = [&](const Arguments& flags) {
    return result_of(document(flags), "device")["accounts"].value("optimizer_state", 0.0);
  };
  EXPECT_NEAR(bytes_of_optimizer(fp16) / bytes_of_optimizer(common), 12.0 / 10, 0.05);
  const std::string chosen = directory_.path("chosen.toml");
  EXPECT_EQ(run(fp16 + Arguments{"--auto", chosen}).code, 0);
  // A training has fp16 only if its device is a GPU, so the file says so.
  const Outcome again = run_program({"plan", "--profile", file_, "--config", chosen});
  EXPECT_EQ(again.code, 0) << again;
  std::ifstream file(chosen);
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  EXPECT_THAT(text, HasSubstr("device = \"cuda\"\n"));
  const Outcome processors =
      run_program({"plan", "--model", "nano", "--profile", "laptop", "--precision", "fp16"});
  EXPECT_EQ(processors.code, 2) << processors;
  EXPECT_THAT(processors.errors, HasSubstr("--precision fp16 computes on GPUs only"));
}

TEST_F(Plan, RefusesWhatDoesNotFitOrIsNotKnown) {
  const Outcome large =
      run({"--max-steps", "1", "--micro-batch-size", "512", "--host-memory", "32MiB"});
  EXPECT_EQ(large.code, 3) << large;
  const Outcome drive =
      run({"--max-steps", "1", "--nvme", directory_.path(), "--place-optimizer", "nvme"});
  EXPECT_EQ(drive.code, 2) << drive;
  EXPECT_THAT(drive.errors, HasSubstr("drive_read_bytes_per_s of the machine small is not known"));
  const Outcome fp32 = run({"--max-steps", "1", "--precision", "fp32"});
  EXPECT_EQ(fp32.code, 2) << fp32;
  EXPECT_THAT(fp32.errors, HasSubstr("fp32_flops_per_s of the machine small is not known"));
  directory_.write("small.toml", std::string(kSmallNode) +
                                     "drive_bytes = 1000\ndrive_read_bytes_per_s = 1e9\n"
                                     "drive_write_bytes_per_s = 1e9\n");
  const Outcome full =
      run({"--max-steps", "1", "--nvme", directory_.path(), "--place-optimizer", "nvme"});
  EXPECT_EQ(full.code, 3) << full;
  EXPECT_THAT(full.errors, HasSubstr("a node of small has 1000 B"));
  const Outcome ranks = run({"--max-steps", "1", "--ranks-per-node", "3"});
  EXPECT_EQ(ranks.code, 2) << ranks;
  EXPECT_THAT(ranks.errors, HasSubstr("--ranks-per-node 3: a node of small has 2 devices"));
  const Outcome name = run_program({"plan", "--model", "nano", "--profile", "dgx-h10"});
  EXPECT_EQ(name.code, 2) << name;
  EXPECT_THAT(name.errors, HasSubstr("dgx-h100"));
}

TEST(Profile, OfAShippedMachineIsPrintedAndReadsBack) {
  const TemporaryDirectory directory;
  const Outcome shown = run_program({"profile", "dgx-a100"});
  EXPECT_EQ(shown.code, 0) << shown;
  const std::string file = directory.write("copy.toml", shown.output);
  const Arguments plan = {"plan", "--model", "gpt2-124m", "--max-steps", "1", "--profile"};
  const Outcome by_name = run_program(plan + Arguments{"dgx-a100"});
  const Outcome by_file = run_program(plan + Arguments{file});
  EXPECT_EQ(by_name.code, 0) << by_name;
  EXPECT_EQ(by_name.output, by_file.output);
}

}  // namespace
}  // namespace terrace
