#include <gtest/gtest.h>

#include <vector>

#include "base/error.h"
#include "tests/runtime/model/parsed_families.h"
#include "tests/runtime/temporary_directory.h"

// How families with experts read config.json, and the files that they refuse. docs/families.md has
// the facts.
namespace terrace {
namespace {

std::vector<bool> layers_with_experts(const ModelConfig& config) {
  std::vector<bool> layers;
  for (std::int64_t i = 0; i < config.layers; ++i) layers.push_back(config.layer(i).has_experts);
  return layers;
}

TEST(FamilyExperts, OfMixtralAreInAllLayers) {
  const ModelConfig absent = parse_with("mixtral");
  EXPECT_EQ(absent.experts, (ExpertOptions{8, 2, absent.intermediate, {}}));
  EXPECT_EQ(layers_with_experts(absent), std::vector<bool>(6, true));
  EXPECT_EQ(parse_with("mixtral", R"({"num_local_experts": 4})").experts.count, 4);
  EXPECT_EQ(parse_with("mixtral", R"({"num_experts": 4})").experts.count, 4);
  EXPECT_EQ(windows(parse_with("mixtral", R"({"sliding_window": 7})")),
            std::vector<std::int64_t>(6, 7));
}

TEST(FamilyExperts, OfOlmoeAreInAllLayers) {
  const ModelConfig absent = parse_with("olmoe");
  EXPECT_EQ(
      absent.experts,
      (ExpertOptions{64, 8, absent.intermediate, {.normalizes = false, .rounds_weights = true}}));
  EXPECT_EQ(layers_with_experts(absent), std::vector<bool>(6, true));
  EXPECT_NO_THROW(parse_with("olmoe", R"({"clip_qkv": null})"));
}

TEST(FamilyExperts, AreBalancedWhereOutputRouterLogitsAsks) {
  const auto coefficient = [](const char* family, const char* more) {
    return parse_with(family, more).experts.balance_coefficient;
  };
  for (const char* family : {"mixtral", "olmoe", "qwen3_moe"}) {
    EXPECT_EQ(coefficient(family, R"({"router_aux_loss_coef": 0.5})"), 0) << family;
    EXPECT_EQ(coefficient(family, R"({"output_router_logits": false})"), 0) << family;
    EXPECT_EQ(coefficient(family, R"({"output_router_logits": true, "router_aux_loss_coef": 0.5})"),
              0.5)
        << family;
    EXPECT_EQ(coefficient(family, R"({"output_router_logits": true})"),
              family == std::string("olmoe") ? 0.01 : 0.001);
  }
}

TEST(FamilyExperts, OfQwen3MoeAreInTheLayersThatTheKeysName) {
  const ModelConfig absent = parse_with("qwen3_moe");
  EXPECT_EQ(absent.experts,
            (ExpertOptions{128, 8, 768, {.normalizes = false, .rounds_weights = true}}));
  EXPECT_EQ(layers_with_experts(absent), std::vector<bool>(6, true));
  EXPECT_TRUE(parse_with("qwen3_moe", R"({"norm_topk_prob": true})").experts.rule.normalizes);
  EXPECT_EQ(layers_with_experts(parse_with("qwen3_moe", R"({"decoder_sparse_step": 2})")),
            (std::vector<bool>{false, true, false, true, false, true}));
  EXPECT_EQ(layers_with_experts(parse_with(
                "qwen3_moe", R"({"decoder_sparse_step": 3, "mlp_only_layers": [0, 2]})")),
            (std::vector<bool>{false, false, false, false, false, true}));
  EXPECT_EQ(windows(parse_with("qwen3_moe", R"({"use_sliding_window": true})")),
            std::vector<std::int64_t>(6, 4096));
}

TEST(FamilyExperts, OfQwen2MoeHaveOneThatAllTokensHave) {
  const ModelConfig absent = parse_with("qwen2_moe");
  const ExpertOptions& experts = absent.experts;
  EXPECT_EQ(experts.count, 60);
  EXPECT_EQ(experts.per_row, 4);
  EXPECT_EQ(experts.intermediate, 1408);
  EXPECT_EQ(experts.shared_intermediate, 5632);
  EXPECT_TRUE(experts.gates_shared);
  EXPECT_EQ(experts.rule, (ExpertRule{.normalizes = false, .rounds_weights = true}));
  EXPECT_TRUE(absent.has_qkv_bias);
  EXPECT_FALSE(absent.has_projection_bias);
  EXPECT_FALSE(parse_with("qwen2_moe", R"({"qkv_bias": false})").has_qkv_bias);
  EXPECT_EQ(layers_with_experts(parse_with("qwen2_moe", R"({"mlp_only_layers": [0, 4]})")),
            (std::vector<bool>{false, true, true, true, false, true}));
  EXPECT_EQ(windows(parse_with("qwen2_moe", R"({"use_sliding_window": true})")),
            (std::vector<std::int64_t>{4096, 0, 4096, 0, 4096, 0}));
  EXPECT_EQ(
      windows(parse_with("qwen2_moe", R"({"use_sliding_window": true, "max_window_layers": 3})")),
      (std::vector<std::int64_t>{4096, 0, 4096, 0, 0, 0}));
}

TEST(FamilyExperts, OfGraniteMoeAreInAllLayersWithItsMultipliers) {
  const ModelConfig absent = parse_with("granitemoe");
  EXPECT_EQ(absent.experts, (ExpertOptions{8, 2, absent.intermediate, {.rounds_weights = true}}));
  EXPECT_EQ(layers_with_experts(absent), std::vector<bool>(6, true));
  EXPECT_EQ(absent.score_scale, 1);
  const ModelConfig scaled =
      parse_with("granitemoe", R"({"embedding_multiplier": 12, "attention_multiplier": 0.5,
                        "residual_multiplier": 0.25, "logits_scaling": 4})");
  EXPECT_EQ(scaled.embedding_scale, 12);
  EXPECT_EQ(scaled.score_scale, 0.5);
  EXPECT_EQ(scaled.residual_scale, 0.25);
  EXPECT_EQ(scaled.logit_scale, 0.25);
}

TEST(FamilyExperts, OfGlm4MoeAreChosenByBiasedSigmoids) {
  const ModelConfig absent = parse_with("glm4_moe");
  const ExpertOptions& experts = absent.experts;
  EXPECT_EQ(experts.count, 128);
  EXPECT_EQ(experts.per_row, 8);
  EXPECT_EQ(experts.intermediate, 1408);
  EXPECT_EQ(experts.shared_intermediate, 1408);
  EXPECT_FALSE(experts.gates_shared);
  EXPECT_TRUE(experts.has_choice_bias);
  EXPECT_EQ(experts.rule, (ExpertRule{.scores = ExpertScores::kSigmoid}));
  EXPECT_EQ(layers_with_experts(absent), (std::vector<bool>{false, true, true, true, true, true}));
  EXPECT_EQ(absent.rotary_width, 2);
  EXPECT_EQ(absent.query_key_norms, QueryKeyNorms::kNone);
  EXPECT_FALSE(absent.has_qkv_bias);
  const ModelConfig other = parse_with(
      "glm4_moe", R"({"attention_bias": true, "use_qk_norm": true, "partial_rotary_factor": 1.0,
                      "n_group": 4, "topk_group": 2, "n_shared_experts": 3,
                      "routed_scaling_factor": 2.5, "norm_topk_prob": false,
                      "first_k_dense_replace": 5, "num_mtp_layers": 2})");
  EXPECT_TRUE(other.has_qkv_bias);
  EXPECT_FALSE(other.has_projection_bias);
  EXPECT_EQ(other.query_key_norms, QueryKeyNorms::kEachHead);
  EXPECT_EQ(other.rotary_width, 4);
  EXPECT_EQ(other.experts.shared_intermediate, 3 * 1408);
  EXPECT_EQ(other.experts.rule, (ExpertRule{.normalizes = false,
                                            .scores = ExpertScores::kSigmoid,
                                            .groups = 4,
                                            .chosen_groups = 2,
                                            .scale = 2.5F}));
  EXPECT_EQ(layers_with_experts(other),
            (std::vector<bool>{false, false, false, false, false, true}));
}

TEST(FamilyExperts, OfGptOssAreInAllLayers) {
  const ModelConfig absent = parse_with("gpt_oss");
  EXPECT_EQ(absent.experts, (ExpertOptions{.count = 128,
                                           .per_row = 4,
                                           .intermediate = absent.intermediate,
                                           .rule = {.normalizes = true, .rounds_weights = true},
                                           .has_bias = true,
                                           .storage = ExpertStorage::kInterleaved}));
  EXPECT_EQ(layers_with_experts(absent), std::vector<bool>(6, true));
  EXPECT_TRUE(absent.has_sinks);
  const RopeOptions& rope = absent.ropes.front();
  EXPECT_EQ(rope.type, RopeType::kYarn);
  EXPECT_EQ(rope.factor, 32);
  EXPECT_EQ(rope.original_positions, 4096);
  EXPECT_FALSE(rope.truncates);
  EXPECT_EQ(parse_with("gpt_oss", R"({"rope_theta": 7.0})").ropes.front().theta, 7);
  EXPECT_EQ(
      parse_with("gpt_oss", R"({"rope_parameters": {"rope_type": "default"}})").ropes.front().type,
      RopeType::kDefault);
}

TEST(FamilyExperts, OfMxfp4AreReadByGptOssAlone) {
  const char* const quantised = R"({"quantization_config": {"quant_method": "mxfp4"}})";
  const ModelConfig config = parse_with("gpt_oss", quantised);
  EXPECT_EQ(config.json.find("quantization_config"), std::string::npos);
  TERRACE_EXPECT_THROW_WITH(parse_with("mixtral", quantised), ConfigError, "quantization_config");
  TERRACE_EXPECT_THROW_WITH(
      parse_with("gpt_oss", R"({"quantization_config": {"quant_method": "bitsandbytes"}})"),
      ConfigError, "quant_method");
}

TEST(FamilyExperts, OfFamiliesThatAreNotBuiltAreRefusedWithWhatIsMissing) {
  TERRACE_EXPECT_THROW_WITH(parse_with("deepseek_v3"), ConfigError, "latent attention");
}

class ExpertFamilyRefuses : public testing::TestWithParam<RefusedByAFamily> {};

TEST_P(ExpertFamilyRefuses, NamingTheKey) {
  const auto& [what, family, more, named] = GetParam();
  TERRACE_EXPECT_THROW_WITH(parse_with(family, more), ConfigError, named);
}

constexpr const char* kNullCoefficient =
    R"({"output_router_logits": true, "router_aux_loss_coef": null})";

INSTANTIATE_TEST_SUITE_P(
    Each, ExpertFamilyRefuses,
    testing::Values(
        RefusedByAFamily{"mixtral_noise", "mixtral", R"({"router_jitter_noise": 0.1})",
                         "router_jitter_noise"},
        RefusedByAFamily{"mixtral_balance", "mixtral", kNullCoefficient, "router_aux_loss_coef"},
        RefusedByAFamily{"mixtral_counts", "mixtral",
                         R"({"num_local_experts": 4, "num_experts": 5})", "num_local_experts"},
        RefusedByAFamily{"mixtral_null", "mixtral", R"({"num_local_experts": null})",
                         "num_local_experts"},
        RefusedByAFamily{"mixtral_chosen", "mixtral", R"({"num_experts_per_tok": 9})",
                         "num_experts_per_tok"},
        RefusedByAFamily{"olmoe_clip", "olmoe", R"({"clip_qkv": 8.0})", "clip_qkv"},
        RefusedByAFamily{"olmoe_heads", "olmoe", R"({"head_dim": 8})", "head_dim"},
        RefusedByAFamily{"gpt_oss_balance", "gpt_oss", kNullCoefficient, "router_aux_loss_coef"},
        RefusedByAFamily{"gpt_oss_clamp", "gpt_oss", R"({"swiglu_limit": 6.0})", "swiglu_limit"},
        RefusedByAFamily{"gpt_oss_slope", "gpt_oss", R"({"swiglu_alpha": 1.0})", "swiglu_alpha"},
        RefusedByAFamily{"gpt_oss_gate", "gpt_oss", R"({"hidden_act": "gelu_new"})", "hidden_act"},
        RefusedByAFamily{"qwen3_moe_balance", "qwen3_moe", kNullCoefficient,
                         "router_aux_loss_coef"},
        RefusedByAFamily{"qwen3_moe_no_experts", "qwen3_moe", R"({"num_experts": 0})",
                         "num_experts"},
        RefusedByAFamily{"qwen3_moe_step", "qwen3_moe", R"({"decoder_sparse_step": 0})",
                         "decoder_sparse_step"},
        RefusedByAFamily{"qwen3_moe_layers", "qwen3_moe", R"({"mlp_only_layers": [6]})",
                         "mlp_only_layers"},
        RefusedByAFamily{"qwen3_moe_windows", "qwen3_moe",
                         R"({"use_sliding_window": true, "max_window_layers": 2})",
                         "max_window_layers"},
        RefusedByAFamily{"qwen2_moe_balance", "qwen2_moe", kNullCoefficient,
                         "router_aux_loss_coef"},
        RefusedByAFamily{"qwen2_moe_shared", "qwen2_moe",
                         R"({"shared_expert_intermediate_size": 0})",
                         "shared_expert_intermediate_size"},
        RefusedByAFamily{"qwen2_moe_name", "qwen2_moe", R"({"num_local_experts": 4})",
                         "num_local_experts"},
        RefusedByAFamily{"qwen2_moe_heads", "qwen2_moe", R"({"num_key_value_heads": null})",
                         "num_key_value_heads"},
        RefusedByAFamily{"granitemoe_balance", "granitemoe", kNullCoefficient,
                         "router_aux_loss_coef"},
        RefusedByAFamily{"granitemoe_biases", "granitemoe", R"({"mlp_bias": true})", "mlp_bias"},
        RefusedByAFamily{"granitemoe_shared", "granitemoe", R"({"shared_intermediate_size": 8})",
                         "shared_intermediate_size"},
        RefusedByAFamily{"glm4_moe_groups", "glm4_moe", R"({"n_group": 3})", "n_group"},
        RefusedByAFamily{"glm4_moe_small_groups", "glm4_moe", R"({"n_group": 128})", "n_group"},
        RefusedByAFamily{"glm4_moe_many_groups", "glm4_moe",
                         R"({"n_group": 65, "n_routed_experts": 130})", "n_group"},
        RefusedByAFamily{"glm4_moe_chosen_groups", "glm4_moe",
                         R"({"n_group": 32, "topk_group": 1})", "topk_group"},
        RefusedByAFamily{"glm4_moe_more_groups", "glm4_moe", R"({"n_group": 2, "topk_group": 3})",
                         "topk_group"},
        RefusedByAFamily{"glm4_moe_no_shared", "glm4_moe", R"({"n_shared_experts": 0})",
                         "n_shared_experts"},
        RefusedByAFamily{"glm4_moe_rotary", "glm4_moe", R"({"partial_rotary_factor": 0.3})",
                         "partial_rotary_factor"},
        RefusedByAFamily{"glm4_moe_null_rotary", "glm4_moe", R"({"partial_rotary_factor": null})",
                         "partial_rotary_factor"},
        RefusedByAFamily{"glm4_moe_windows", "glm4_moe", R"({"sliding_window": 8})",
                         "sliding_window"}),
    [](const auto& each) { return std::string(each.param.what); });

}  // namespace
}  // namespace terrace
