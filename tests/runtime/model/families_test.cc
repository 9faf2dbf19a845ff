#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/error.h"
#include "runtime/model/families/family.h"
#include "tests/runtime/temporary_directory.h"

// The values that each family's class takes where config.json lacks a key, and the files that are
// refused. docs/families.md has the facts.
namespace terrace {
namespace {

using Json = nlohmann::json;

// Returns the keys that have no default here, and few others. There are as many heads as any class
// has key-value heads by default.
Json sizes_of(const std::string& family) {
  Json json = {{"model_type", family},         {"hidden_size", 128}, {"intermediate_size", 96},
               {"num_hidden_layers", 6},       {"vocab_size", 300},  {"num_attention_heads", 32},
               {"max_position_embeddings", 50}};
  if (family == "phi3" || family == "smollm3")
    json["pad_token_id"] = 3;  // the class's is too large
  return json;
}

Json with(const std::string& family, const std::string& more) {
  Json json = sizes_of(family);
  json.update(Json::parse(more));
  return json;
}

ModelConfig family_config(const Json& json) {
  return parse_model_config(json.dump(), "a/config.json");
}

ModelConfig parse_with(const std::string& family, const std::string& more = "{}") {
  return family_config(with(family, more));
}

std::vector<std::int64_t> windows(const ModelConfig& config) {
  std::vector<std::int64_t> list;
  for (std::int64_t i = 0; i < config.layers; ++i) list.push_back(config.layer(i).window);
  return list;
}

std::vector<std::int32_t> ropes(const ModelConfig& config) {
  std::vector<std::int32_t> list;
  for (std::int64_t i = 0; i < config.layers; ++i) list.push_back(config.layer(i).rope);
  return list;
}

struct Defaults {
  const char* family;
  std::int64_t key_value_heads;
  std::int64_t head_width;
  double epsilon;
  double theta;
  std::vector<std::int64_t> windows;
  FeedForward feed_forward = FeedForward::kSiluGate;
  bool tied = false;
};

class FamilyDefaults : public testing::TestWithParam<Defaults> {};

TEST_P(FamilyDefaults, AreTheClasss) {
  const Defaults& wanted = GetParam();
  const ModelConfig config = parse_with(wanted.family);
  EXPECT_EQ(config.family, wanted.family);
  EXPECT_EQ(config.key_value_heads, wanted.key_value_heads);
  EXPECT_EQ(config.head_width, wanted.head_width);
  EXPECT_EQ(config.norm.epsilon, static_cast<float>(wanted.epsilon));
  EXPECT_EQ(config.ropes.front().theta, wanted.theta);
  EXPECT_EQ(config.feed_forward, wanted.feed_forward);
  EXPECT_EQ(config.tied, wanted.tied);
  EXPECT_EQ(windows(config), wanted.windows);
  const bool has_biases = config.family == "gpt_oss";
  EXPECT_EQ(config.has_qkv_bias, config.family.starts_with("qwen2") || has_biases);
  EXPECT_EQ(config.has_projection_bias, has_biases);
  EXPECT_FALSE(config.has_feed_forward_bias);
}

const std::vector<std::int64_t> kNone(6, 0);
const std::vector<std::int64_t> kAll(6, 4096);

INSTANTIATE_TEST_SUITE_P(
    Each, FamilyDefaults,
    testing::Values(
        Defaults{"llama", 32, 4, 1e-6, 1e4, kNone}, Defaults{"mistral", 8, 4, 1e-6, 1e4, kAll},
        Defaults{"qwen2", 32, 4, 1e-6, 1e4, kNone}, Defaults{"qwen3", 32, 128, 1e-6, 1e4, kNone},
        Defaults{
            "gemma2", 4, 256, 1e-6, 1e4, {4096, 0, 4096, 0, 4096, 0}, FeedForward::kGeluGate, true},
        Defaults{"gemma3_text",
                 4,
                 256,
                 1e-6,
                 1e6,
                 {4096, 4096, 4096, 4096, 4096, 0},
                 FeedForward::kGeluGate,
                 true},
        Defaults{"phi3", 32, 4, 1e-5, 1e4, kNone}, Defaults{"olmo2", 32, 4, 1e-5, 1e4, kNone},
        Defaults{"smollm3", 4, 4, 1e-6, 2e6, kNone, FeedForward::kSiluGate, true},
        Defaults{"granite", 32, 4, 1e-6, 1e4, kNone}, Defaults{"mixtral", 8, 4, 1e-5, 1e6, kNone},
        Defaults{"olmoe", 32, 4, 1e-5, 1e4, kNone}, Defaults{"qwen3_moe", 4, 4, 1e-6, 1e4, kNone},
        Defaults{"qwen2_moe", 16, 4, 1e-6, 1e4, kNone},
        Defaults{"granitemoe", 32, 4, 1e-6, 1e4, kNone},
        Defaults{"glm4_moe", 8, 4, 1e-5, 1e4, kNone},
        Defaults{
            "gpt_oss", 8, 64, 1e-5, 1.5e5, {128, 0, 128, 0, 128, 0}, FeedForward::kClampedGate}),
    [](const auto& each) { return std::string(each.param.family); });

// --- the padding token ---------------------------------------------------------------------------

TEST(FamilyPadding, IsTheClasssWhereTheKeyIsAbsent) {
  for (const char* family : {"llama", "mistral", "qwen2", "qwen3", "granite"}) {
    EXPECT_EQ(parse_with(family).padding_token, -1) << family;
  }
  EXPECT_EQ(parse_with("gemma2").padding_token, 0);
  EXPECT_EQ(parse_with("gemma3_text").padding_token, 0);
  EXPECT_EQ(parse_with("olmo2").padding_token, 1);
  EXPECT_EQ(parse_with("olmoe").padding_token, 1);
  EXPECT_EQ(parse_with("gemma2", R"({"pad_token_id": null})").padding_token, -1);
  Json large = with("phi3", R"({"vocab_size": 40000})");
  large.erase("pad_token_id");
  EXPECT_EQ(family_config(large).padding_token, 32000);
  large = with("smollm3", R"({"vocab_size": 128256})");
  large.erase("pad_token_id");
  EXPECT_EQ(family_config(large).padding_token, 128004);
}

TEST(FamilyPadding, CountsFromTheEndBelowZeroAndIsInTheVocabulary) {
  EXPECT_EQ(parse_with("llama", R"({"pad_token_id": -1})").padding_token, 299);
  EXPECT_EQ(parse_with("llama", R"({"pad_token_id": -300})").padding_token, 0);
  for (const char* id : {"-301", "300", "0.5"}) {
    TERRACE_EXPECT_THROW_WITH(parse_with("llama", std::string(R"({"pad_token_id": )") + id + "}"),
                              ConfigError, "pad_token_id");
  }
  Json small = sizes_of("phi3");
  small.erase("pad_token_id");
  TERRACE_EXPECT_THROW_WITH(family_config(small), ConfigError, "default, 32000");
}

// --- null ----------------------------------------------------------------------------------------

TEST(FamilyNulls, OfKeyValueHeadsAreAsManyAsHeadsOrRefused) {
  for (const char* family : {"llama", "qwen2", "qwen3", "phi3", "olmo2", "smollm3", "granite"}) {
    EXPECT_EQ(parse_with(family, R"({"num_key_value_heads": null})").key_value_heads, 32) << family;
  }
  for (const char* family : {"mistral", "gemma2", "gemma3_text"}) {
    TERRACE_EXPECT_THROW_WITH(parse_with(family, R"({"num_key_value_heads": null})"), ConfigError,
                              "num_key_value_heads is null");
  }
}

TEST(FamilyNulls, OfHeadWidthAreDividedOrRefused) {
  for (const char* family : {"llama", "mistral"}) {
    EXPECT_EQ(parse_with(family, R"({"head_dim": null})").head_width, 4) << family;
  }
  for (const char* family :
       {"qwen2", "qwen3", "gemma2", "gemma3_text", "phi3", "olmo2", "smollm3", "granite"}) {
    EXPECT_EQ(parse_with(family, R"({"head_dim": 6})").head_width, 6) << family;
    TERRACE_EXPECT_THROW_WITH(parse_with(family, R"({"head_dim": null})"), ConfigError,
                              "head_dim is null");
  }
}

TEST(FamilyNulls, OfWindowsAreNoneOrRefused) {
  EXPECT_EQ(windows(parse_with("mistral", R"({"sliding_window": null})")), kNone);
  for (const char* family : {"gemma2", "gemma3_text"}) {
    TERRACE_EXPECT_THROW_WITH(parse_with(family, R"({"sliding_window": null})"), ConfigError,
                              "sliding_window is null");
  }
}

// --- windows -------------------------------------------------------------------------------------

TEST(FamilyWindows, OfQwenAreOfUpperLayersWhereUsed) {
  for (const char* family : {"qwen2", "qwen3"}) {
    EXPECT_EQ(windows(parse_with(family, R"({"sliding_window": 7, "max_window_layers": 0})")),
              kNone);
    const std::string used = R"({"use_sliding_window": true, "sliding_window": 7)";
    EXPECT_EQ(windows(parse_with(family, used + "}")), kNone);  // from layer 28 on
    EXPECT_EQ(windows(parse_with(family, used + R"(, "max_window_layers": 4})")),
              (std::vector<std::int64_t>{0, 0, 0, 0, 7, 7}));
    EXPECT_EQ(
        windows(parse_with(family, R"({"use_sliding_window": true, "max_window_layers": 0})")),
        kAll);
    EXPECT_EQ(windows(parse_with(family, R"({"use_sliding_window": true, "max_window_layers": 0,
                                             "sliding_window": null})")),
              kNone);
  }
}

const std::string kTypes = R"("layer_types": ["full_attention", "full_attention",
    "sliding_attention", "full_attention", "full_attention", "sliding_attention"])";

TEST(FamilyWindows, AreAsTheTypesOfLayersSay) {
  const std::vector<std::int64_t> wanted = {0, 0, 7, 0, 0, 7};
  const std::string keys = R"({"sliding_window": 7, )" + kTypes;
  for (const char* family : {"gemma2", "gemma3_text", "smollm3"}) {
    EXPECT_EQ(windows(parse_with(family, keys + "}")), wanted) << family;
  }
  for (const char* family : {"qwen2", "qwen3"}) {
    EXPECT_EQ(windows(parse_with(family, keys + R"(, "use_sliding_window": true})")), wanted);
    TERRACE_EXPECT_THROW_WITH(parse_with(family, keys + "}"), ConfigError, "layer_types");
  }
}

TEST(FamilyWindows, OfSmolLm3AreOfLayersThatDoNotRotateWhereUsed) {
  EXPECT_EQ(windows(parse_with("smollm3", R"({"sliding_window": 7})")), kNone);
  EXPECT_EQ(windows(parse_with("smollm3", R"({"use_sliding_window": true})")), kNone);
  EXPECT_EQ(windows(parse_with("smollm3", R"({"sliding_window": 7, "use_sliding_window": true})")),
            (std::vector<std::int64_t>{0, 0, 0, 7, 0, 0}));
}

TEST(FamilyWindows, OfPhi3AreOfAllLayers) {
  EXPECT_EQ(windows(parse_with("phi3", R"({"sliding_window": 7})")),
            (std::vector<std::int64_t>(6, 7)));
}

TEST(FamilyWindows, OfGemma3FollowThePattern) {
  EXPECT_EQ(windows(parse_with("gemma3_text", R"({"sliding_window_pattern": 3,
                "_sliding_window_pattern": 2, "sliding_window": 7})")),
            (std::vector<std::int64_t>{7, 7, 0, 7, 7, 0}));
}

// --- rotary embeddings ---------------------------------------------------------------------------

TEST(FamilyRopes, OfGemma3DifferByTypeOfLayer) {
  const ModelConfig absent = parse_with("gemma3_text");
  EXPECT_EQ(ropes(absent), (std::vector<std::int32_t>{1, 1, 1, 1, 1, 0}));
  ASSERT_EQ(absent.ropes.size(), 2U);
  EXPECT_EQ(absent.ropes[1].theta, 1e4);
  const ModelConfig newer = parse_with("gemma3_text", R"({"rope_theta": 3, "rope_parameters": {
      "full_attention": {"rope_type": "linear", "factor": 8},
      "sliding_attention": {"rope_theta": 5}}})");
  EXPECT_EQ(newer.ropes[0].type, RopeType::kLinear);
  EXPECT_EQ(newer.ropes[0].theta, 3);
  EXPECT_EQ(newer.ropes[1].theta, 5);
  const ModelConfig older = parse_with("gemma3_text", R"({"rope_theta": 7,
      "rope_local_base_freq": 9, "rope_scaling": {"rope_type": "linear", "factor": 8}})");
  EXPECT_EQ(older.ropes[0].factor, 8);
  EXPECT_EQ(older.ropes[0].theta, 7);
  EXPECT_EQ(older.ropes[1].type, RopeType::kDefault);
  EXPECT_EQ(older.ropes[1].theta, 9);
  // Keys of rope_scaling replace those of full layers, as in transformers.
  const ModelConfig both = parse_with("gemma3_text", R"({
      "rope_scaling": {"rope_type": "linear", "factor": 8},
      "rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 2,
                                             "rope_theta": 5}}})");
  EXPECT_EQ(both.ropes.front().factor, 8);
  EXPECT_EQ(both.ropes.front().theta, 5);
  EXPECT_EQ(both.ropes.back().type, RopeType::kDefault);
}

TEST(FamilyRopes, OfSmolLm3AreNotOfAllLayers) {
  EXPECT_EQ(ropes(parse_with("smollm3")), (std::vector<std::int32_t>{0, 0, 0, -1, 0, 0}));
  EXPECT_EQ(ropes(parse_with("smollm3", R"({"no_rope_layer_interval": 2})")),
            (std::vector<std::int32_t>{0, -1, 0, -1, 0, -1}));
  EXPECT_EQ(ropes(parse_with("smollm3", R"({"no_rope_layers": [0, 1, 1, 1, 0, 1]})")),
            (std::vector<std::int32_t>{-1, 0, 0, 0, -1, 0}));
}

// --- what single families have -------------------------------------------------------------------

TEST(FamilyOptions, OfGemmaScaleEmbeddingsAndScores) {
  for (const char* family : {"gemma2", "gemma3_text"}) {
    const ModelConfig config = parse_with(family);
    EXPECT_EQ(config.embedding_scale, std::sqrt(128.0F));
    EXPECT_TRUE(config.rounds_embedding_scale);
    EXPECT_EQ(config.score_scale, 0.0625F);
    EXPECT_EQ(parse_with(family, R"({"query_pre_attn_scalar": 64})").score_scale, 0.125F);
    EXPECT_EQ(config.norm.form, RmsNormForm::kMultiplyByOnePlus);
    EXPECT_EQ(config.norm_places, NormPlaces::kAround);
  }
}

TEST(FamilyOptions, CapsOfGemmaAreDefaultsWhereAbsentAndNoneWhereNull) {
  const ModelConfig absent = parse_with("gemma2");
  EXPECT_EQ(absent.score_soft_cap, 50);
  EXPECT_EQ(absent.logit_soft_cap, 30);
  const ModelConfig none =
      parse_with("gemma2", R"({"attn_logit_softcapping": null, "final_logit_softcapping": null})");
  EXPECT_EQ(none.score_soft_cap, 0);
  EXPECT_EQ(none.logit_soft_cap, 0);
  EXPECT_EQ(parse_with("gemma3_text").logit_soft_cap, 0);
  EXPECT_EQ(parse_with("gemma3_text", R"({"final_logit_softcapping": 4})").logit_soft_cap, 4);
}

TEST(FamilyOptions, MultipliersOfGraniteAreOneWhereAbsent) {
  const ModelConfig absent = parse_with("granite");
  EXPECT_EQ(absent.score_scale, 1);
  EXPECT_EQ(absent.logit_scale, 1);
  const ModelConfig given = parse_with("granite", R"({"embedding_multiplier": 12,
      "attention_multiplier": 0.25, "residual_multiplier": 0.5, "logits_scaling": 8})");
  EXPECT_EQ(given.embedding_scale, 12);
  EXPECT_FALSE(given.rounds_embedding_scale);
  EXPECT_EQ(given.score_scale, 0.25F);
  EXPECT_EQ(given.residual_scale, 0.5F);
  EXPECT_EQ(given.logit_scale, 0.125F);
}

TEST(FamilyOptions, BiasesAreWhereTheKeysSay) {
  for (const char* family : {"qwen3", "gemma2", "gemma3_text", "olmo2", "smollm3", "granite"}) {
    const ModelConfig config = parse_with(family, R"({"attention_bias": true})");
    EXPECT_TRUE(config.has_qkv_bias && config.has_projection_bias) << family;
  }
  for (const char* family : {"smollm3", "granite"}) {
    EXPECT_TRUE(parse_with(family, R"({"mlp_bias": true})").has_feed_forward_bias) << family;
  }
}

TEST(FamilyOptions, GatesAreOfTheActivationsThatAreBuilt) {
  for (const char* name : {"gelu_new", "gelu_pytorch_tanh", "gelu_python_tanh", "gelu_fast"}) {
    const std::string key = std::string(R"({"hidden_act": ")") + name + "\"}";
    EXPECT_EQ(parse_with("mistral", key).feed_forward, FeedForward::kGeluGate) << name;
  }
  EXPECT_EQ(parse_with("gemma2", R"({"hidden_activation": "silu"})").feed_forward,
            FeedForward::kSiluGate);
}

TEST(FamilyOptions, Phi3RotatesAPartOfAHead) { EXPECT_EQ(parse_with("phi3").rotated_width(), 4); }

TEST(FamilyOptions, BareModelsAreRead) {
  EXPECT_NO_THROW(parse_with("qwen3", R"({"architectures": ["Qwen3Model"]})"));
  EXPECT_NO_THROW(parse_with("gemma3_text", R"({"architectures": ["Gemma3TextModel"]})"));
}

// --- experts -------------------------------------------------------------------------------------

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
  EXPECT_EQ(windows(parse_with("qwen3_moe", R"({"use_sliding_window": true})")), kAll);
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

// --- refusals ------------------------------------------------------------------------------------

struct RefusedByAFamily {
  const char* what;
  const char* family;
  std::string more;
  const char* named;
};

class FamilyRefuses : public testing::TestWithParam<RefusedByAFamily> {};

TEST_P(FamilyRefuses, NamingTheKey) {
  const auto& [what, family, more, named] = GetParam();
  TERRACE_EXPECT_THROW_WITH(parse_with(family, more), ConfigError, named);
  TERRACE_EXPECT_THROW_WITH(parse_with(family, more), ConfigError, "a/config.json");
}

INSTANTIATE_TEST_SUITE_P(
    Each, FamilyRefuses,
    testing::Values(
        RefusedByAFamily{"ministral", "mistral", "{" + kTypes + "}", "layer_types"},
        RefusedByAFamily{"mistral_biases", "mistral", R"({"attention_bias": true})",
                         "attention_bias"},
        RefusedByAFamily{"mistral_window", "mistral", R"({"sliding_window": 0})", "sliding_window"},
        RefusedByAFamily{"qwen2_biases", "qwen2", R"({"attention_bias": false})", "attention_bias"},
        RefusedByAFamily{"qwen2_class", "qwen2", R"({"architectures": ["Qwen3ForCausalLM"]})",
                         "Qwen3ForCausalLM"},
        RefusedByAFamily{"qwen3_types", "qwen3", R"({"layer_types": ["full_attention"]})",
                         "6 layers"},
        RefusedByAFamily{"chunks", "qwen3",
                         R"({"layer_types": ["chunked_attention", "full_attention",
                "full_attention", "full_attention", "full_attention", "full_attention"]})",
                         "chunked_attention"},
        RefusedByAFamily{"both_ways", "gemma3_text", R"({"use_bidirectional_attention": true})",
                         "use_bidirectional_attention"},
        RefusedByAFamily{"not_causal", "llama", R"({"is_causal": false})", "is_causal"},
        RefusedByAFamily{"gemma2_width", "gemma2", R"({"hidden_size": 100})", "hidden_size"},
        RefusedByAFamily{"llama_width", "llama", R"({"hidden_size": 100, "head_dim": 4})",
                         "hidden_size"},
        RefusedByAFamily{"gemma2_act", "gemma2", R"({"hidden_activation": "gelu"})",
                         "hidden_activation"},
        RefusedByAFamily{"gemma2_other_act", "gemma2", R"({"hidden_act": "silu"})", "hidden_act"},
        RefusedByAFamily{"gemma2_scalar", "gemma2", R"({"query_pre_attn_scalar": 20.5})",
                         "query_pre_attn_scalar"},
        RefusedByAFamily{"gemma2_null_scalar", "gemma2", R"({"query_pre_attn_scalar": null})",
                         "query_pre_attn_scalar is null"},
        RefusedByAFamily{"gemma2_partial", "gemma2", R"({"partial_rotary_factor": 0.5})",
                         "partial_rotary_factor"},
        RefusedByAFamily{"gemma3_cap", "gemma3_text", R"({"attn_logit_softcapping": 50})",
                         "attn_logit_softcapping"},
        RefusedByAFamily{"gemma3_flat_rope", "gemma3_text",
                         R"({"rope_parameters": {"rope_type": "linear", "factor": 8}})",
                         "full_attention"},
        RefusedByAFamily{"gemma3_strange_rope", "gemma3_text",
                         R"({"rope_parameters": {"full_attention": {"odd": 8}}})",
                         "rope_parameters.full_attention.odd"},
        RefusedByAFamily{"smollm3_layers", "smollm3", R"({"no_rope_layers": [1, 0]})",
                         "no_rope_layers"},
        RefusedByAFamily{"smollm3_numbers", "smollm3", R"({"no_rope_layers": [1, 0, 2, 1, 1, 1]})",
                         "no_rope_layers"},
        RefusedByAFamily{"smollm3_no_window", "smollm3", "{" + kTypes + "}", "layer_types"},
        RefusedByAFamily{"phi3_pairs", "phi3", R"({"partial_rotary_factor": 0.75})",
                         "partial_rotary_factor"},
        RefusedByAFamily{"phi3_more", "phi3", R"({"partial_rotary_factor": 1.5})",
                         "partial_rotary_factor"},
        RefusedByAFamily{"phi3_biases", "phi3", R"({"attention_bias": true})", "attention_bias"},
        RefusedByAFamily{"olmo2_window", "olmo2", R"({"sliding_window": 7})", "sliding_window"},
        RefusedByAFamily{"granite_zero", "granite", R"({"logits_scaling": 0})", "logits_scaling"},
        RefusedByAFamily{"granite_act", "granite", R"({"hidden_act": "relu"})", "hidden_act"},
        RefusedByAFamily{"key_value_heads", "mistral", R"({"num_attention_heads": 4})",
                         "class's default"}),
    [](const auto& each) { return std::string(each.param.what); });

constexpr const char* kNullCoefficient =
    R"({"output_router_logits": true, "router_aux_loss_coef": null})";

INSTANTIATE_TEST_SUITE_P(
    Experts, FamilyRefuses,
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
