#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <nlohmann/json.hpp>

#include "tests/e2e/tiny_training.h"

// Runs of models with experts: in groups of any size, stopped and resumed in other groups, and
// large ones that are only planned.
namespace terrace {
namespace {

using testing::HasSubstr;

std::string small_experts() {
  return nlohmann::json{{"model_type", "qwen3_moe"},
                        {"architectures", {"Qwen3MoeForCausalLM"}},
                        {"hidden_size", 32},
                        {"intermediate_size", 64},
                        {"moe_intermediate_size", 24},
                        {"num_hidden_layers", 2},
                        {"num_attention_heads", 4},
                        {"num_key_value_heads", 2},
                        {"head_dim", 8},
                        {"num_experts", 6},
                        {"num_experts_per_tok", 2},
                        {"norm_topk_prob", true},
                        {"vocab_size", 256},
                        {"max_position_embeddings", 32},
                        {"tie_word_embeddings", false}}
      .dump();
}

class ExpertRuns : public testing::TestWithParam<const char*> {
 protected:
  ExpertRuns() : training_(small_experts()) {}

  Arguments arguments(const Arguments& more = {}) const {
    return Arguments{"--max-steps", "6", "--optimizer-state-dtype", GetParam()} + more;
  }

  const TinyTraining training_;
};

TEST_P(ExpertRuns, GoOnInOtherGroupsWithTheSameBits) {
  training_.train("alone", arguments());
  training_.train("run", arguments({"--stop-after-step", "2", "--experts-per-group", "4"}));
  const Arguments resumes = {"--resume", "auto"};
  training_.train(
      "run", arguments(resumes + Arguments{"--stop-after-step", "4", "--experts-per-group", "1"} +
                       training_.nvme() +
                       Arguments{"--place-parameters", "nvme", "--place-optimizer", "nvme",
                                 "--micro-batch-order", "layer-major"}));
  training_.train("run", arguments(resumes));
  training_.expect_same("run", "alone", "final");
  const Outcome sampled = run_program({"sample", "--model", training_.path("run/final"), "--prompt",
                                       "the ", "--max-new-tokens", "4", "--temperature", "0"});
  EXPECT_EQ(sampled.code, 0) << sampled;
}

TEST_P(ExpertRuns, OfRanksInGroupsHaveTheSameBits) {
  const Arguments ranks = {"--local-ranks", "2", "--zero-stage"};
  training_.train("whole", arguments(ranks + Arguments{"0"}));
  training_.train("divided", arguments(ranks + Arguments{"3", "--experts-per-group", "1"}));
  training_.expect_same("divided", "whole", "final");
}

INSTANTIATE_TEST_SUITE_P(Moments, ExpertRuns, testing::Values("fp32", "int8"),
                         [](const auto& test) { return std::string(test.param); });

TEST(ExpertRunsRefused, NumbersThatNoGroupCanHave) {
  const TinyTraining experts(small_experts());
  const Outcome many =
      run_program(experts.command("run", {"--max-steps", "1", "--experts-per-group", "7"}));
  EXPECT_EQ(many.code, 2) << many;
  EXPECT_THAT(many.errors, HasSubstr("--experts-per-group 7"));
  const TinyTraining dense;
  const Outcome none =
      run_program(dense.command("run", {"--max-steps", "1", "--experts-per-group", "1"}));
  EXPECT_EQ(none.code, 2) << none;
  EXPECT_THAT(none.errors, HasSubstr("has no layers of experts"));
}

// --- large models -------------------------------------------------------------------------------

std::string qwen3_30b() {
  return nlohmann::json{{"model_type", "qwen3_moe"},
                        {"architectures", {"Qwen3MoeForCausalLM"}},
                        {"hidden_size", 2048},
                        {"intermediate_size", 6144},
                        {"moe_intermediate_size", 768},
                        {"num_hidden_layers", 48},
                        {"num_attention_heads", 32},
                        {"num_key_value_heads", 4},
                        {"head_dim", 128},
                        {"num_experts", 128},
                        {"num_experts_per_tok", 8},
                        {"norm_topk_prob", true},
                        {"rope_theta", 1000000.0},
                        {"vocab_size", 151936},
                        {"max_position_embeddings", 40960},
                        {"tie_word_embeddings", false}}
      .dump();
}

std::string mixtral_8x7b() {
  return nlohmann::json{{"model_type", "mixtral"},     {"architectures", {"MixtralForCausalLM"}},
                        {"hidden_size", 4096},         {"intermediate_size", 14336},
                        {"num_hidden_layers", 32},     {"num_attention_heads", 32},
                        {"num_key_value_heads", 8},    {"num_local_experts", 8},
                        {"num_experts_per_tok", 2},    {"rope_theta", 1000000.0},
                        {"vocab_size", 32000},         {"max_position_embeddings", 32768},
                        {"tie_word_embeddings", false}}
      .dump();
}

std::string gpt_oss(std::int64_t layers, std::int64_t experts) {
  return nlohmann::json{{"model_type", "gpt_oss"},
                        {"architectures", {"GptOssForCausalLM"}},
                        {"attention_bias", true},
                        {"head_dim", 64},
                        {"hidden_size", 2880},
                        {"intermediate_size", 2880},
                        {"num_hidden_layers", layers},
                        {"num_attention_heads", 64},
                        {"num_key_value_heads", 8},
                        {"num_local_experts", experts},
                        {"num_experts_per_tok", 4},
                        {"rope_scaling",
                         {{"rope_type", "yarn"},
                          {"factor", 32.0},
                          {"beta_fast", 32.0},
                          {"beta_slow", 1.0},
                          {"truncate", false},
                          {"original_max_position_embeddings", 4096}}},
                        {"rope_theta", 150000},
                        {"sliding_window", 128},
                        {"vocab_size", 201088},
                        {"max_position_embeddings", 131072},
                        {"quantization_config", {{"quant_method", "mxfp4"}}},
                        {"tie_word_embeddings", false}}
      .dump();
}

double processor_seconds_of_children() {
  rusage usage{};
  getrusage(RUSAGE_CHILDREN, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// A step with all state on the drive fits into little more than the head, or one expert, needs.
void expect_plan(const std::string& config, const Arguments& more) {
  const TinyTraining training(config);
  const double before = processor_seconds_of_children();
  const Outcome outcome = run_program(training.command(
      "run", Arguments{"--dry-run", "--max-steps",         "1",    "--sequence-length",
                       "2048",      "--micro-batch-size",  "1",    "--gradient-accumulation-steps",
                       "1",         "--recompute",         "full", "--lookahead",
                       "0",         "--threads",           "2",    "--place-parameters",
                       "nvme",      "--place-gradients",   "nvme", "--place-optimizer",
                       "nvme",      "--place-activations", "nvme"} +
                 training.nvme() + more));
  EXPECT_EQ(outcome.code, 0) << outcome;
  EXPECT_LT(processor_seconds_of_children() - before, 15);
}

TEST(LargeExpertPlans, Qwen3FitsIn2457MiB) {
  expect_plan(qwen3_30b(), {"--host-memory", "2457MiB"});
}

TEST(LargeExpertPlans, Qwen3OfSingleExpertsIsPlannedQuickly) {
  expect_plan(qwen3_30b(), {"--host-memory", "2457MiB", "--experts-per-group", "1"});
}

TEST(LargeExpertPlans, MixtralFitsIn2GiB) {
  expect_plan(mixtral_8x7b(), {"--host-memory", "2GiB"});
}

TEST(LargeExpertPlans, GptOss20bFitsIn4GiB) {
  expect_plan(gpt_oss(24, 32), {"--host-memory", "4GiB"});
}

TEST(LargeExpertPlans, GptOss120bFitsIn4GiB) {
  expect_plan(gpt_oss(36, 128), {"--host-memory", "4GiB"});
}

}  // namespace
}  // namespace terrace
