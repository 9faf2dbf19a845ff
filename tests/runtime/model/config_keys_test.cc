#include "runtime/model/config_keys.h"

#include <gtest/gtest.h>

#include <array>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "runtime/model/json_text.h"
#include "runtime/model/model_config.h"
#include "tests/runtime/temporary_directory.h"

// The keys of config.json that are read, passed over or refused.
namespace terrace {
namespace {

using Json = nlohmann::json;

constexpr const char* kGpt2 = R"({"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 4,
  "n_positions": 128, "vocab_size": 300})";
constexpr const char* kLlama = R"({"model_type": "llama", "hidden_size": 64,
  "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 300,
  "max_position_embeddings": 128})";

ModelConfig read_keys(const Json& json, const std::vector<std::string>& ignored = {}) {
  return parse_model_config(json.dump(), "a/config.json", ignored);
}

// Returns the base with the keys of an object that is given as text.
Json with_keys(const char* base, const std::string& more) {
  Json json = Json::parse(base);
  json.update(Json::parse(more));
  return json;
}

struct Strange {
  const char* what;
  const char* base;
  const char* more;
  std::vector<std::string> ignored;  // the keys that the remedy names
};

class StrangeKeys : public testing::TestWithParam<Strange> {};

TEST_P(StrangeKeys, AreRefusedByNameAndLetThroughByName) {
  const auto& [what, base, more, ignored] = GetParam();
  try {
    read_keys(with_keys(base, more));
    FAIL() << more;
  } catch (const ConfigError& error) {
    std::string flag = "--ignore-config-keys";
    for (const std::string& key : ignored) flag += " " + key;
    EXPECT_TRUE(error.remedy().ends_with(flag)) << error.remedy();
  }
  const ModelConfig config = read_keys(with_keys(base, more), ignored);
  EXPECT_EQ(config.ignored_keys, ignored);
  EXPECT_EQ(config.json, with_keys(base, more).dump());  // final/ has all keys
  // A checkpoint leaves these keys out, so that its model can be read again.
  const ModelConfig saved = parse_saved_config(config_json_to_save(config), "checkpoint");
  EXPECT_TRUE(saved.ropes == config.ropes);
  EXPECT_EQ(saved.width, config.width);
}

INSTANTIATE_TEST_SUITE_P(
    Each, StrangeKeys,
    testing::Values(
        Strange{"unknown", kLlama, R"({"logits_soft_cap": 30.0})", {"logits_soft_cap"}},
        Strange{
            "several", kLlama, R"({"mup_scale": 2, "a_norm": {"x": 1}})", {"a_norm", "mup_scale"}},
        Strange{"of_another_family", kGpt2, R"({"hidden_act": "silu"})", {"hidden_act"}},
        Strange{"interleaved", kLlama, R"({"rope_interleaved": true})", {"rope_interleaved"}},
        Strange{"dropout", kLlama, R"({"hidden_dropout": 0.1})", {"hidden_dropout"}},
        Strange{"window", kLlama, R"({"sliding_window": 4096})", {"sliding_window"}},
        Strange{"pruned", kGpt2, R"({"pruned_heads": {"0": [1]}})", {"pruned_heads"}},
        Strange{"rope",
                kLlama,
                R"({"rope_scaling": {"type": "linear", "factor": 2, "mrope_section": [1, 1]}})",
                {"rope_scaling.mrope_section"}},
        Strange{"new_rope",
                kLlama,
                R"({"rope_parameters": {"short_mscale": 1.2}})",
                {"rope_parameters.short_mscale"}}),
    [](const auto& each) { return std::string(each.param.what); });

TEST(ConfigKeys, NullAndHarmlessValuesPass) {
  EXPECT_NO_THROW(
      read_keys(with_keys(kLlama, R"({"logits_soft_cap": null, "sliding_window": null})")));
  EXPECT_NO_THROW(
      read_keys(with_keys(kLlama, R"({"hidden_dropout": 0, "use_sliding_window": false})")));
  EXPECT_NO_THROW(
      read_keys(with_keys(kGpt2, R"({"pruned_heads": {}, "is_encoder_decoder": false})")));
  // These keys are not used by the type of rope.
  EXPECT_NO_THROW(read_keys(with_keys(kLlama, R"({"rope_parameters": {"attention_factor": 1}})")));
  EXPECT_NO_THROW(read_keys(with_keys(
      kLlama,
      R"({"rope_scaling": {"type": "linear", "factor": 2, "mscale": 1, "beta_fast": 2}})")));
}

// An unknown feature that is off, keys of old versions, and keys that say something once more.
TEST(ConfigKeys, WhatChangesNothingPasses) {
  for (const char* more :
       {R"({"parallel_residual": false})", R"({"pretraining_tp": 2})",
        R"({"rope_scaling": {"type": "linear", "factor": 2, "finetuned": true}})"}) {
    EXPECT_NO_THROW(read_keys(with_keys(kLlama, more))) << more;
  }
  EXPECT_NO_THROW(read_keys(with_keys(
      kGpt2, R"({"n_special": 0, "output_past": true, "predict_special_tokens": true})")));
  Json mistral = with_keys(kLlama, R"({"sliding_window": 64, "sliding_window_size": 64})");
  mistral["model_type"] = "mistral";
  mistral["num_key_value_heads"] = 2;
  EXPECT_NO_THROW(read_keys(mistral));
  mistral["sliding_window_size"] = 32;
  TERRACE_EXPECT_THROW_WITH(read_keys(mistral), ConfigError, "sliding_window_size 32");
  TERRACE_EXPECT_THROW_WITH(read_keys(with_keys(kLlama, R"({"sliding_window_size": 64})")),
                            ConfigError, "sliding_window_size 64");
}

// transformers has such a default in the class of each family.
TEST(ConfigKeys, TheNumberOfPositionsHasADefault) {
  Json json = Json::parse(kLlama);
  json.erase("max_position_embeddings");
  EXPECT_EQ(read_keys(json).positions, 2048);
  json["max_position_embeddings"] = nullptr;
  TERRACE_EXPECT_THROW_WITH(read_keys(json), ConfigError, "max_position_embeddings");
  Json gpt2 = Json::parse(kGpt2);
  gpt2.erase("n_positions");
  EXPECT_EQ(read_keys(gpt2).positions, 1024);
}

// There gemma3 has an object for each type of layer.
TEST(ConfigKeys, InsideTheObjectsOfRopeParameters) {
  constexpr auto kOwn = std::to_array<KnownKey>({{"rope_scaling"}, {"rope_parameters"}});
  const auto check = [&](const char* json) { check_config_keys(json, kOwn, "a/config.json"); };
  EXPECT_NO_THROW(check(R"({"original_max_position_embeddings": 16, "rope_parameters": {
      "full_attention": {"rope_type": "yarn", "beta_slow": 2}, "sliding_attention": null}})"));
  const char* strange = R"({"rope_parameters": {"full_attention": {"rope_typ": "yarn"}}})";
  TERRACE_EXPECT_THROW_WITH(check(strange), ConfigError,
                            "rope_parameters.full_attention.rope_typ \"yarn\"");
  TERRACE_EXPECT_THROW_WITH(check(R"({"rope_parameters": {"chunked_attention": {}}})"), ConfigError,
                            "rope_parameters.chunked_attention");
  TERRACE_EXPECT_THROW_WITH(check(R"({"rope_scaling": {"full_attention": {}}})"), ConfigError,
                            "rope_scaling.full_attention");
  TERRACE_EXPECT_THROW_WITH(
      check_config_keys(R"({"original_max_position_embeddings": 16})", {}, "a/config.json"),
      ConfigError, "original_max_position_embeddings");
  const std::string without =
      without_keys(strange, {"rope_parameters.full_attention.rope_typ"}, "a/config.json");
  EXPECT_EQ(Json::parse(without), Json::parse(R"({"rope_parameters": {"full_attention": {}}})"));
}

TEST(ConfigKeys, AnIgnoredKeyThatIsNotThereNamesTheNearest) {
  try {
    read_keys(with_keys(kLlama, R"({"logits_soft_cap": 30.0})"), {"logit_soft_cap"});
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_NE(error.remedy().find("did you mean logits_soft_cap?"), std::string::npos);
  }
}

// Such a key counts as absent, even one that is known and would be refused for its value.
TEST(ConfigKeys, IgnoredKeysCountAsAbsent) {
  const Json json = with_keys(kGpt2, R"({"scale_attn_by_inverse_layer_idx": true})");
  EXPECT_THROW(read_keys(json), ConfigError);
  EXPECT_NO_THROW(read_keys(json, {"scale_attn_by_inverse_layer_idx"}));
}

// A run may have begun before the list of known keys had grown.
TEST(ConfigKeys, OfACheckpointNeedNotBeKnown) {
  EXPECT_EQ(parse_saved_config(with_keys(kLlama, R"({"odd": 1})").dump(), "checkpoint").width, 64);
}

TEST(ConfigKeys, TwoNamesOfOneSizeMustAgree) {
  EXPECT_EQ(read_keys(with_keys(kGpt2, R"({"hidden_size": 64})")).width, 64);
  TERRACE_EXPECT_THROW_WITH(read_keys(with_keys(kGpt2, R"({"hidden_size": 32})")), ConfigError,
                            "hidden_size");
}

TEST(ConfigKeys, SwishIsSilu) {
  EXPECT_NO_THROW(read_keys(with_keys(kLlama, R"({"hidden_act": "swish"})")));
}

TEST(ConfigKeys, NumbersThatPythonWritesAreRead) {
  const std::string head = R"({"model_type": "llama", "hidden_size": 64, "intermediate_size": 96,
    "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 300, )";
  const ModelConfig config =
      parse_model_config(head + R"("max_position_embeddings": 128, "max_length": Infinity,
        "temperature": NaN, "task_specific_params": {"a \"Infinity\"": [-Infinity, "NaN"]}})",
                         "config.json");
  EXPECT_EQ(config.positions, 128);
  TERRACE_EXPECT_THROW_WITH(
      parse_model_config(head + R"("max_position_embeddings": Infinity})", "config.json"),
      ConfigError, "max_position_embeddings is Infinity,");
}

TEST(JsonText, QuotesNumbersOnlyAndGivesThemBack) {
  const std::string text = R"({"a": NaN, "b": [-Infinity,Infinity], "NaN": "\" Infinity \\"})";
  const std::string quoted = quote_non_finite(text);
  EXPECT_TRUE(Json::accept(quoted)) << quoted;
  EXPECT_EQ(unquote_non_finite(quoted), text);
  EXPECT_EQ(unquote_non_finite(Json::parse(quoted).dump()),
            R"({"NaN":"\" Infinity \\","a":NaN,"b":[-Infinity,Infinity]})");
}

struct TwoRopes {
  const char* what;
  const char* more;
  const char* named;  // null: they agree
};

class RopeOfTwoForms : public testing::TestWithParam<TwoRopes> {};

// Each version of transformers takes one or the other.
TEST_P(RopeOfTwoForms, IsRefusedWhereTheyDiffer) {
  const auto& [what, more, named] = GetParam();
  if (named == nullptr) {
    EXPECT_NO_THROW(read_keys(with_keys(kLlama, more)));
  } else {
    TERRACE_EXPECT_THROW_WITH(read_keys(with_keys(kLlama, more)), ConfigError, named);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Each, RopeOfTwoForms,
    testing::Values(
        TwoRopes{"same", R"({"rope_theta": 5e5,
               "rope_scaling": {"type": "linear", "factor": 2},
               "rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 5e5}})",
                 nullptr},
        TwoRopes{"empty", R"({"rope_scaling": {}, "rope_parameters": {"rope_theta": 5e5}})",
                 nullptr},
        TwoRopes{"null", R"({"rope_scaling": null, "rope_parameters": {"rope_theta": 5e5}})",
                 nullptr},
        TwoRopes{"same_theta", R"({"rope_theta": 5e5, "rope_parameters": {"rope_theta": 500000}})",
                 nullptr},
        TwoRopes{"factor", R"({"rope_scaling": {"type": "linear", "factor": 2},
               "rope_parameters": {"rope_type": "linear", "factor": 4}})",
                 "rope_scaling and rope_parameters differ"},
        TwoRopes{"theta", R"({"rope_scaling": {"type": "linear", "factor": 2},
               "rope_parameters": {"rope_type": "linear", "factor": 2, "rope_theta": 5e5}})",
                 "rope_scaling and rope_parameters differ"},
        TwoRopes{"kind", R"({"rope_scaling": {"rope_type": "default"},
               "rope_parameters": {"rope_type": "linear", "factor": 4}})",
                 "rope_scaling and rope_parameters differ"},
        TwoRopes{"theta_outside", R"({"rope_theta": 1e4, "rope_parameters": {"rope_theta": 5e5}})",
                 "rope_theta"},
        TwoRopes{"names_of_type", R"({"rope_scaling": {"type": "linear", "rope_type": "default",
               "factor": 2}})",
                 "type"}),
    [](const auto& each) { return std::string(each.param.what); });

}  // namespace
}  // namespace terrace
