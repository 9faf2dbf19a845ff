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

// The checkpoints of tensor-parallel ranks have whole experts: another mesh goes on from them, and
// the text is sampled from a final/ of theirs.
TEST_P(ExpertRuns, OfTensorRanksGoOnWithTheSameBits) {
  const Arguments ranks = {"--local-ranks", "4", "--tensor-parallel", "2", "--zero-stage"};
  training_.train("alone", arguments(ranks + Arguments{"0"}));
  training_.train("run", arguments(ranks + Arguments{"2", "--stop-after-step", "3",
                                                     "--experts-per-group", "1"}));
  training_.train("run", arguments(ranks + Arguments{"3", "--resume", "auto"}));
  training_.expect_same("run", "alone", "final");
  const Arguments pair = {"--local-ranks", "2", "--tensor-parallel", "2"};
  training_.train("pair", arguments(pair));
  training_.train("elsewhere", arguments(pair + Arguments{"--stop-after-step", "3"}));
  training_.train("elsewhere", arguments({"--resume", "auto"}));
  expect_near(training_.rows("elsewhere"), training_.rows("pair"), 1e-2);
  const Outcome sampled = run_program({"sample", "--model", training_.path("run/final"), "--prompt",
                                       "the ", "--max-new-tokens", "4", "--temperature", "0"});
  EXPECT_EQ(sampled.code, 0) << sampled;
}

nlohmann::json result_of_sample(const Arguments& arguments) {
  const Outcome told = run_program(arguments);
  EXPECT_EQ(told.code, 0) << told;
  return nlohmann::json::parse(told.output).at("results").at(0);
}

TEST(ExpertSamples, ReadTheExpertsOfAToken) {
  const TinyTraining training(small_experts());
  training.train("run", {"--max-steps", "2", "--precision", "fp32"});
  const Arguments sample = {"sample", "--model", training.path("run/final"), "--prompt",
                            "the ",   "--json",  "--max-new-tokens",         "12"};
  const Arguments tiers = training.nvme() + Arguments{"--place-parameters", "nvme"};
  const auto held = result_of_sample(sample);
  const auto tiered = result_of_sample(sample + tiers);
  EXPECT_EQ(tiered.at("text"), held.at("text"));
  // In units of 4096 elements, an expert has one, and so has the rest of a block. The head has
  // three. The embedding has two, and they are read at once.
  constexpr std::int64_t kLayer = 1 + 2;  // two experts of six
  EXPECT_EQ(tiered.at("nvme_read_bytes_per_pass").get<std::int64_t>(),
            (2 + 2 * kLayer + 3) * 4096 * 4);
}

TEST(ExpertAdapters, OverAQuantizedBaseMerge) {
  const TinyTraining training(small_experts());
  training.train("base", {"--max-steps", "2", "--precision", "fp32"});
  const Arguments adapted = {"--model",        training.path("base/final"),
                             "--init",         "weights",
                             "--max-steps",    "4",
                             "--lora-rank",    "4",
                             "--lora-targets", "all-linear"};
  const Outcome trained = run_program(training.command("run", adapted));
  EXPECT_EQ(trained.code, 0) << trained;
  EXPECT_THAT(trained.errors + trained.output, HasSubstr("experts: 6 in a layer, frozen"));
  training.train("nf4", adapted + Arguments{"--base-quantization", "nf4", "--experts-per-group",
                                            "2", "--stop-after-step", "2"});
  training.train("nf4", adapted + Arguments{"--base-quantization", "nf4", "--resume", "auto"});
  training.train("whole", adapted + Arguments{"--base-quantization", "nf4"});
  training.expect_same("nf4", "whole", "final");
  const Outcome merged = run_program(
      {"merge", training.path("base/final"), training.path("nf4/final"), training.path("merged")});
  EXPECT_EQ(merged.code, 0) << merged;
  const auto text_of = [&](const std::string& model) {
    return result_of_sample({"sample", "--model", training.path(model), "--prompt", "the ",
                             "--json", "--max-new-tokens", "8", "--temperature", "0"})
        .at("text");
  };
  EXPECT_EQ(text_of("nf4/final"), text_of("merged"));
}

TEST(ExpertAdapters, OfExpertsAreRefused) {
  const TinyTraining training(small_experts());
  const Outcome refused = run_program(training.command(
      "run", {"--max-steps", "1", "--lora-rank", "4", "--lora-targets", "q_proj", "gate_proj"}));
  EXPECT_EQ(refused.code, 2) << refused;
  EXPECT_THAT(refused.errors, HasSubstr("--lora-targets gate_proj matches model.layers.0.mlp"));
  EXPECT_THAT(refused.errors, HasSubstr("k_proj, o_proj, q_proj, v_proj"));
}

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

TEST(ExpertRunsRefused, LossesOfRoutersInAModelWithoutExperts) {
  const TinyTraining dense;
  for (const char* flag : {"--router-aux-loss-coef", "--router-z-loss-coef"}) {
    const Outcome none = run_program(dense.command("run", {"--max-steps", "1", flag, "0.1"}));
    EXPECT_EQ(none.code, 2) << none;
    EXPECT_THAT(none.errors, HasSubstr(std::string(flag) + " 0.1"));
    EXPECT_THAT(none.errors, HasSubstr("has no layers of experts"));
  }
}

// A run that asks for the loss itself equals a run of a model that asks for it, a resumed run may
// change its mind, and every row has the figures.
TEST(ExpertRunsOfLosses, AreAskedForByTheModelOrByFlags) {
  nlohmann::json config = nlohmann::json::parse(small_experts());
  config["output_router_logits"] = true;
  config["router_aux_loss_coef"] = 0.25;
  const TinyTraining asking(config.dump());
  const TinyTraining silent(small_experts());
  const Arguments steps = {"--max-steps", "4"};
  asking.train("model", steps);
  silent.train("flag", steps + Arguments{"--router-aux-loss-coef", "0.25"});
  silent.train("none", steps);
  asking.train("off", steps + Arguments{"--router-aux-loss-coef", "0"});
  silent.train("z", steps + Arguments{"--router-z-loss-coef", "0.25"});
  const auto rows = [](const TinyTraining& training, const std::string& run) {
    std::string all;
    for (const auto& row : training.rows(run)) all += row.bits + "\n";
    return all;
  };
  EXPECT_EQ(rows(asking, "model"), rows(silent, "flag"));
  EXPECT_EQ(rows(asking, "off"), rows(silent, "none"));
  EXPECT_NE(rows(silent, "flag"), rows(silent, "none"));
  EXPECT_NE(rows(silent, "z"), rows(silent, "none"));
  silent.train("changed", steps + Arguments{"--stop-after-step", "2"});
  silent.train("changed", steps + Arguments{"--resume", "auto", "--router-aux-loss-coef", "0.25"});
  EXPECT_NE(rows(silent, "changed"), rows(silent, "none"));
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
