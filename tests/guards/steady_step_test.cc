#include <fmt/format.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>

#include "tests/e2e/checkout_paths.h"
#include "tests/e2e/program_run.h"
#include "tests/guards/step_counts.h"
#include "tests/runtime/temporary_directory.h"

// Tests how many system calls, wake-ups, page faults, allocations and copies a steady step makes,
// for models of real width: ceilings.json has the limits of each run. The limits do not depend on a
// machine's speed, so they hold on any machine.
namespace terrace {
namespace {

// A Llama with two layers and the widths of the 1.1 billion parameter model that many tune first.
constexpr const char* kWideLlama = R"({"model_type": "llama",
  "architectures": ["LlamaForCausalLM"], "hidden_size": 2048, "intermediate_size": 5632,
  "num_hidden_layers": 2, "num_attention_heads": 32, "num_key_value_heads": 4,
  "vocab_size": 32000, "max_position_embeddings": 2048, "tie_word_embeddings": false})";

class SteadyStep : public testing::Test {
 protected:
  void SetUp() override {
    if (!can_count()) GTEST_SKIP() << "needs strace, and the right to trace a program";
  }

  std::vector<std::string> arguments(const std::string& model,
                                     const std::vector<std::string>& more) const {
    std::vector<std::string> all = {"train",  "--model", model,         "--init",
                                    "random", "--data",  readme_path(), "--validation-fraction",
                                    "0"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }

  std::string wide_llama() const {
    directory_.write("llama/config.json", kWideLlama);
    return directory_.path("llama");
  }

  // Expects that each count of a step is at most its ceiling, and prints all counts.
  static void expect_below_ceilings(const std::string& name, const CountedRun& run) {
    std::ifstream file(TERRACE_CEILINGS);
    const nlohmann::json ceilings = nlohmann::json::parse(file).at(name);
    const StepCounts counts = count_steps(run);
    EXPECT_EQ(counts.size(), ceilings.size());
    for (const auto& [count, ceiling] : ceilings.items()) {
      const auto found = counts.find(count);
      ASSERT_NE(found, counts.end()) << count;
      std::cout << fmt::format("{} {}: {:.1f} a step, ceiling {}\n", name, count, found->second,
                               ceiling.get<double>());
      EXPECT_LE(found->second, ceiling.get<double>()) << name << " " << count;
    }
  }

  TemporaryDirectory directory_;
};

TEST_F(SteadyStep, InMemory) {
  expect_below_ceilings("in_memory",
                        {.arguments = arguments("gpt2-124m", {"--sequence-length", "512"})});
}

TEST_F(SteadyStep, InMemoryInFp32) {
  expect_below_ceilings(
      "in_memory_fp32",
      {.arguments = arguments("gpt2-124m", {"--sequence-length", "256", "--precision", "fp32"})});
}

TEST_F(SteadyStep, OnTheDrive) {
  expect_below_ceilings(
      "on_the_drive",
      {.arguments =
           arguments("gpt2-124m", {"--sequence-length", "256", "--device-memory", "1GiB",
                                   "--host-memory", "1GiB", "--nvme", directory_.path(),
                                   "--place-parameters", "nvme", "--place-optimizer", "nvme"})});
}

TEST_F(SteadyStep, OfAnAdapter) {
  expect_below_ceilings(
      "adapter",
      {.arguments = arguments(wide_llama(), {"--sequence-length", "256", "--lora-rank", "8"})});
}

TEST_F(SteadyStep, OfAnAdapterOnQuantizedWeights) {
  expect_below_ceilings(
      "adapter_nf4",
      {.arguments = arguments(wide_llama(), {"--sequence-length", "256", "--lora-rank", "8",
                                             "--base-quantization", "nf4"})});
}

}  // namespace
}  // namespace terrace
