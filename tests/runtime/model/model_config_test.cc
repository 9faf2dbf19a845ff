#include "runtime/model/model_config.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "runtime/model/parameter_layout.h"
#include "tests/runtime/temporary_directory.h"

namespace terrace {
namespace {

using Json = nlohmann::json;

Json llama() {
  return {{"model_type", "llama"},         {"hidden_size", 64},        {"intermediate_size", 96},
          {"num_hidden_layers", 2},        {"num_attention_heads", 4}, {"vocab_size", 300},
          {"max_position_embeddings", 128}};
}

Json gpt2() {
  return {{"model_type", "gpt2"}, {"n_embd", 64},       {"n_layer", 2},
          {"n_head", 4},          {"n_positions", 128}, {"vocab_size", 300}};
}

ModelConfig parse_config(const Json& json) {
  return parse_model_config(json.dump(), "a/config.json");
}

Json with(Json json, const std::string& key, const Json& value) {
  json[key] = value;
  return json;
}

TEST(ModelConfig, LlamaDefaultsAreTheClasss) {
  const ModelConfig config = parse_config(llama());
  EXPECT_EQ(config.family, "llama");
  EXPECT_EQ(config.width, 64);
  EXPECT_EQ(config.intermediate, 96);
  EXPECT_EQ(config.layers, 2);
  EXPECT_EQ(config.heads, 4);
  EXPECT_EQ(config.key_value_heads, 4);
  EXPECT_EQ(config.head_width, 16);
  EXPECT_EQ(config.vocabulary, 300);
  EXPECT_EQ(config.positions, 128);
  EXPECT_EQ(config.norm.epsilon, 1e-6F);
  EXPECT_EQ(config.initializer_range, 0.02F);
  EXPECT_FALSE(config.tied);
  EXPECT_FALSE(config.has_qkv_bias);
  EXPECT_FALSE(config.has_feed_forward_bias);
  EXPECT_EQ(config.ropes.front().type, RopeType::kDefault);
  EXPECT_EQ(config.ropes.front().theta, 10000.0);
}

TEST(ModelConfig, LlamaKeysWin) {
  Json json = llama();
  json.update({{"num_key_value_heads", 2},
               {"head_dim", 32},
               {"rms_norm_eps", 1e-5},
               {"tie_word_embeddings", true},
               {"attention_bias", true},
               {"mlp_bias", true},
               {"initializer_range", 0.01},
               {"attention_dropout", 0.1},
               {"rope_theta", 5e5}});
  const ModelConfig config = parse_config(json);
  EXPECT_EQ(config.key_value_heads, 2);
  EXPECT_EQ(config.head_width, 32);
  EXPECT_EQ(config.norm.epsilon, 1e-5F);
  EXPECT_TRUE(config.tied);
  EXPECT_TRUE(config.has_qkv_bias);
  EXPECT_TRUE(config.has_feed_forward_bias);
  EXPECT_EQ(config.initializer_range, 0.01F);
  EXPECT_EQ(config.ropes.front().theta, 5e5);
  EXPECT_EQ(config.json, json.dump());
}

TEST(ModelConfig, NullMeansAbsent) {
  const ModelConfig config =
      parse_config(with(with(llama(), "num_key_value_heads", nullptr), "head_dim", nullptr));
  EXPECT_EQ(config.key_value_heads, 4);
  EXPECT_EQ(config.head_width, 16);
  EXPECT_EQ(parse_config(with(gpt2(), "n_inner", nullptr)).intermediate, 256);
}

TEST(ModelConfig, Gpt2DefaultsAndAliases) {
  const ModelConfig config = parse_config(gpt2());
  EXPECT_EQ(config.family, "gpt2");
  EXPECT_TRUE(config.tied);
  EXPECT_EQ(config.intermediate, 256);
  EXPECT_EQ(config.head_width, 16);
  EXPECT_EQ(config.norm.epsilon, 1e-5F);
  const ModelConfig aliased = parse_config({{"model_type", "gpt2"},
                                            {"hidden_size", 64},
                                            {"num_hidden_layers", 3},
                                            {"num_attention_heads", 2},
                                            {"max_position_embeddings", 32},
                                            {"vocab_size", 300},
                                            {"n_inner", 100},
                                            {"tie_word_embeddings", false},
                                            {"activation_function", "gelu_pytorch_tanh"}});
  EXPECT_EQ(aliased.layers, 3);
  EXPECT_EQ(aliased.heads, 2);
  EXPECT_EQ(aliased.positions, 32);
  EXPECT_EQ(aliased.intermediate, 100);
  EXPECT_FALSE(aliased.tied);
}

TEST(ModelConfig, RopeOfOldAndNewFiles) {
  const Json scaling = {{"factor", 32.0},
                        {"low_freq_factor", 1.0},
                        {"high_freq_factor", 4.0},
                        {"original_max_position_embeddings", 8192},
                        {"rope_type", "llama3"}};
  const ModelConfig old =
      parse_config(with(with(llama(), "rope_scaling", scaling), "rope_theta", 5e5));
  EXPECT_EQ(old.ropes.front().type, RopeType::kLlama3);
  EXPECT_EQ(old.ropes.front().theta, 5e5);
  EXPECT_EQ(old.ropes.front().factor, 32.0);
  EXPECT_EQ(old.ropes.front().original_positions, 8192);
  const ModelConfig renamed =
      parse_config(with(llama(), "rope_parameters", with(scaling, "rope_theta", 7e5)));
  EXPECT_EQ(renamed.ropes.front().type, RopeType::kLlama3);
  EXPECT_EQ(renamed.ropes.front().theta, 7e5);
  const ModelConfig linear =
      parse_config(with(llama(), "rope_scaling", {{"type", "linear"}, {"factor", 2.0}}));
  EXPECT_EQ(linear.ropes.front().type, RopeType::kLinear);
  EXPECT_EQ(linear.ropes.front().factor, 2.0);
}

struct Refused {
  const char* what;
  Json json;
  const char* named;
};

class ModelConfigRefuses : public testing::TestWithParam<Refused> {};

TEST_P(ModelConfigRefuses, NamingTheKey) {
  TERRACE_EXPECT_THROW_WITH(parse_config(GetParam().json), ConfigError, "a/config.json");
  TERRACE_EXPECT_THROW_WITH(parse_config(GetParam().json), ConfigError, GetParam().named);
}

INSTANTIATE_TEST_SUITE_P(
    Each, ModelConfigRefuses,
    testing::Values(
        Refused{"type", with(llama(), "model_type", "mamba"), "mamba"},
        Refused{"no_type", with(llama(), "model_type", nullptr), "model_type"},
        Refused{"class", with(llama(), "architectures", {"LlamaForSequenceClassification"}),
                "LlamaForSequenceClassification"},
        Refused{"quantized", with(llama(), "quantization_config", {{"bits", 4}}),
                "quantization_config"},
        Refused{"llama_act", with(llama(), "hidden_act", "gelu"), "hidden_act"},
        Refused{"axial", with(llama(), "rope_scaling", {{"type", "axial"}, {"factor", 2}}),
                "axial"},
        Refused{"no_factor", with(llama(), "rope_scaling", {{"type", "linear"}}), "factor"},
        Refused{"by_layer",
                with(llama(), "rope_parameters", {{"full_attention", {{"rope_theta", 1e4}}}}),
                "full_attention"},
        Refused{"partial", with(llama(), "partial_rotary_factor", 0.5), "partial_rotary_factor"},
        Refused{"groups", with(llama(), "num_key_value_heads", 3), "num_attention_heads"},
        Refused{"uneven", with(llama(), "num_attention_heads", 5), "hidden_size"},
        Refused{"odd_head", with(llama(), "head_dim", 15), "head_dim"},
        Refused{"zero", with(llama(), "num_hidden_layers", 0), "num_hidden_layers"},
        Refused{"fraction", with(llama(), "vocab_size", 2.5), "vocab_size"},
        Refused{"words", with(llama(), "hidden_size", "64"), "hidden_size"},
        Refused{"missing", with(llama(), "intermediate_size", nullptr), "intermediate_size"},
        Refused{"flag", with(llama(), "attention_bias", "yes"), "attention_bias"},
        Refused{"gpt2_act", with(gpt2(), "activation_function", "relu"), "activation_function"},
        Refused{"by_index", with(gpt2(), "scale_attn_by_inverse_layer_idx", true),
                "scale_attn_by_inverse_layer_idx"},
        Refused{"unscaled", with(gpt2(), "scale_attn_weights", false), "scale_attn_weights"},
        Refused{"cross", with(gpt2(), "add_cross_attention", true), "add_cross_attention"}),
    [](const auto& each) { return std::string(each.param.what); });

// They are refused before anything of that size is made.
TEST(ModelConfig, RefusesSizesThatNoModelHas) {
  for (const char* key : {"hidden_size", "intermediate_size", "vocab_size", "head_dim"}) {
    TERRACE_EXPECT_THROW_WITH(parse_config(with(llama(), key, 900'000'000'000)), ConfigError,
                              "columns");
  }
  TERRACE_EXPECT_THROW_WITH(parse_config(with(llama(), "num_hidden_layers", 4'000'000'000)),
                            ConfigError, "4000000000 layers");
  TERRACE_EXPECT_THROW_WITH(parse_config(with(gpt2(), "n_layer", 1e15)), ConfigError, "layers");
}

TEST(ModelConfig, RefusesWhatIsNotAnObject) {
  TERRACE_EXPECT_THROW_WITH(parse_model_config("{", "x"), ConfigError, "not JSON");
  TERRACE_EXPECT_THROW_WITH(parse_model_config("[]", "x"), ConfigError, "not a JSON object");
  TERRACE_EXPECT_THROW_WITH(parse_model_config(R"({"rope_theta": 1e999})", "x"), ConfigError,
                            "1e999");
}

TEST(ModelConfig, PresetsHaveTheirModelsParameterCounts) {
  const std::vector<std::pair<std::string, std::int64_t>> counts = {
      {"gpt2-124m", 124'439'808},    {"gpt2-xl", 1'557'611'200},
      {"llama-1b", 1'235'814'400},   {"llama-3b", 3'212'749'824},
      {"llama-7b", 6'738'415'616},   {"llama-8b", 8'030'261'248},
      {"llama-70b", 70'553'706'496}, {"nano", 803'968}};
  for (const auto& [name, count] : counts) {
    const ModelConfig config = load_model_config(name);
    EXPECT_EQ(parameter_count(parameter_layout(config)), count) << name;
    EXPECT_EQ(config.name, name);
    EXPECT_TRUE(Json::parse(config.json).contains("architectures")) << name;
  }
  EXPECT_EQ(preset_names().size(), counts.size());
}

TEST(ModelConfig, NanoIsAsTheManualSays) {
  const ModelConfig nano = load_model_config("nano");
  EXPECT_EQ(nano.layers, 4);
  EXPECT_EQ(nano.width, 128);
  EXPECT_EQ(nano.heads, 4);
  EXPECT_EQ(nano.key_value_heads, 2);
  EXPECT_EQ(nano.intermediate, 352);
  EXPECT_EQ(nano.vocabulary, 256);
  EXPECT_EQ(nano.positions, 256);
}

TEST(ModelConfig, UnknownPresetSuggestsTheNearest) {
  try {
    load_model_config("lama-8b");
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_NE(error.remedy().find("did you mean llama-8b?"), std::string::npos) << error.remedy();
  }
}

TEST(ModelConfig, LoadsADirectory) {
  const TemporaryDirectory temporary;
  temporary.write("tiny/config.json", llama().dump());
  EXPECT_EQ(load_model_config(temporary.path("tiny")).name, "tiny");
  EXPECT_EQ(load_model_config(temporary.path("tiny") + "/").name, "tiny");
  EXPECT_EQ(load_model_config(temporary.path("tiny")).width, 64);
  TERRACE_EXPECT_THROW_WITH(load_model_config(temporary.path()), ConfigError, "no config.json");
}

}  // namespace
}  // namespace terrace
