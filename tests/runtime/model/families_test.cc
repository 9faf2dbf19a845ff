#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "base/error.h"
#include "tests/runtime/model/parsed_families.h"
#include "tests/runtime/temporary_directory.h"

// The values that each family's class takes where config.json lacks a key, and the files that are
// refused. docs/families.md has the facts.
namespace terrace {
namespace {

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
  EXPECT_EQ(parse_unpadded("phi3", R"({"vocab_size": 40000})").padding_token, 32000);
  EXPECT_EQ(parse_unpadded("smollm3", R"({"vocab_size": 128256})").padding_token, 128004);
}

TEST(FamilyPadding, CountsFromTheEndBelowZeroAndIsInTheVocabulary) {
  EXPECT_EQ(parse_with("llama", R"({"pad_token_id": -1})").padding_token, 299);
  EXPECT_EQ(parse_with("llama", R"({"pad_token_id": -300})").padding_token, 0);
  for (const char* id : {"-301", "300", "0.5"}) {
    TERRACE_EXPECT_THROW_WITH(parse_with("llama", std::string(R"({"pad_token_id": )") + id + "}"),
                              ConfigError, "pad_token_id");
  }
  TERRACE_EXPECT_THROW_WITH(parse_unpadded("phi3"), ConfigError, "default, 32000");
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

// --- refusals ------------------------------------------------------------------------------------

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

}  // namespace
}  // namespace terrace
