#include "runtime/checkpoint/adapter_directory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "runtime/checkpoint/adapter_config.h"
#include "runtime/model/adapter_targets.h"
#include "tests/runtime/checkpoint/hf_fixture.h"
#include "tests/runtime/model/small_models.h"
#include "tests/runtime/temporary_directory.h"

// Adapters in PEFT's files: whatever is written is read back, and whatever is not built is refused
// by name.
namespace terrace {
namespace {

using testing::HasSubstr;

ModelConfig small_base(std::string_view family) {
  return small_model(family, {.width = 32, .head_width = 8, .intermediate = 48});
}

ModelConfig small_adapted(std::string_view family,
                          const std::vector<std::string>& patterns = std::vector<std::string>()) {
  return with_adapter(small_base(family), {.rank = 4, .alpha = 6, .targets = {}}, patterns);
}

void write_adapter(const std::string& directory, const ModelConfig& config,
                   DType type = DType::kF32) {
  write_adapter_directory(
      {.directory = directory, .base_model = "/models/base", .types = {.usual = type}}, config,
      parameter_layout(config), kFetchRandom);
}

TEST(AdapterDirectories, HoldWhatWasWritten) {
  for (const char* family : {"llama", "gpt2", "phi3"}) {
    for (const DType type : {DType::kF32, DType::kBF16}) {
      const TemporaryDirectory files;
      const ModelConfig config = small_adapted(family);
      write_adapter(files.path("a"), config, type);
      ASSERT_TRUE(is_adapter_directory(files.path("a")));
      const AdapterDirectory adapter(files.path("a"));
      EXPECT_EQ(adapter.base_model(), "/models/base");
      EXPECT_EQ(adapter.adapted(small_base(family)).adapter, config.adapter);
      int tensors = 0;
      for (const UnitLayout& unit : parameter_layout(config)) {
        for (const ParameterTensor& tensor : unit.tensors) {
          std::vector<float> wanted(static_cast<std::size_t>(tensor.elements()), 0.0F);
          std::vector<float> values(wanted.size(), -1.0F);
          adapter.read(StateField::kMaster, unit, tensor.offset, values);
          if (is_adapter(tensor.kind)) {
            ++tensors;
            kFetchRandom(unit, tensor, 0, wanted);
            if (type == DType::kBF16) {
              for (float& value : wanted) value = to_float(to_parameter<Bf16>(value));
            }
          }
          EXPECT_EQ(values, wanted) << tensor.name;
          adapter.read(StateField::kSlot0, unit, tensor.offset, values);
          EXPECT_EQ(values, std::vector<float>(wanted.size(), 0.0F)) << tensor.name;
        }
      }
      EXPECT_GT(tensors, 0);
    }
  }
}

// The names and shapes of the tensors in the file, and the configuration, are as PEFT has them.
TEST(AdapterDirectories, AreAsPeftHasThem) {
  const TemporaryDirectory files;
  write_adapter(files.path("gpt2"), small_adapted("gpt2", {"c_attn"}));
  const SafetensorsFile gpt2(files.path("gpt2/adapter_model.safetensors"));
  const std::string name = "base_model.model.transformer.h.1.attn.c_attn.lora_";
  ASSERT_EQ(gpt2.header().tensors.size(), 4U);
  EXPECT_EQ(gpt2.find(name + "A.weight")->shape, (std::vector<std::uint64_t>{4, 32}));
  EXPECT_EQ(gpt2.find(name + "B.weight")->shape, (std::vector<std::uint64_t>{96, 4}));
  auto keys = nlohmann::json::parse(files.read("gpt2/adapter_config.json"));
  EXPECT_EQ(keys["peft_type"], "LORA");
  EXPECT_EQ(keys["task_type"], "CAUSAL_LM");
  EXPECT_EQ(keys["r"], 4);
  EXPECT_EQ(keys["lora_alpha"].dump(), "6");
  EXPECT_EQ(keys["fan_in_fan_out"], true);
  EXPECT_EQ(keys["use_rslora"], false);
  EXPECT_EQ(keys["target_modules"], nlohmann::json({"c_attn"}));
  write_adapter(files.path("phi3"), small_adapted("phi3", {"qkv_proj"}));
  const SafetensorsFile phi3(files.path("phi3/adapter_model.safetensors"));
  const std::string qkv = "base_model.model.model.layers.0.self_attn.qkv_proj.lora_";
  EXPECT_EQ(phi3.header().tensors.size(), 4U);
  EXPECT_EQ(phi3.find(qkv + "A.weight")->shape, (std::vector<std::uint64_t>{4, 32}));
  EXPECT_EQ(phi3.find(qkv + "B.weight")->shape, (std::vector<std::uint64_t>{64, 4}));
  keys = nlohmann::json::parse(files.read("phi3/adapter_config.json"));
  EXPECT_EQ(keys["fan_in_fan_out"], false);
}

TEST(AdapterDirectories, OfAnotherModelAreRefused) {
  const TemporaryDirectory files;
  write_adapter(files.path("a"), small_adapted("llama"));
  const AdapterDirectory adapter(files.path("a"));
  TERRACE_EXPECT_THROW_WITH(adapter.adapted(small_base("gpt2")), ConfigError,
                            "no tensor belongs to");
  TERRACE_EXPECT_THROW_WITH(adapter.adapted(small_base("phi3")), ConfigError,
                            "belongs to no such layer");
  const ModelConfig wide = small_model("llama", {.width = 64, .head_width = 8, .intermediate = 48});
  TERRACE_EXPECT_THROW_WITH(adapter.adapted(wide), ConfigError, "should be [4, 64]");
  const ModelConfig short_model =
      small_model("llama", {.layers = 1, .width = 32, .head_width = 8, .intermediate = 48});
  TERRACE_EXPECT_THROW_WITH(adapter.adapted(short_model), ConfigError, "layers.1");
}

TEST(AdapterDirectories, AreNotWrittenAsModels) {
  const TemporaryDirectory files;
  const ModelConfig config = small_adapted("llama");
  TERRACE_EXPECT_THROW_WITH(write_hf_directory({.directory = files.path("model")}, config,
                                               parameter_layout(config), kFetchRandom),
                            ConfigError, "terrace merge");
  EXPECT_FALSE(files.has("model"));
}

TEST(AdapterDirectories, ThatAreNoneSaySo) {
  const TemporaryDirectory files;
  EXPECT_FALSE(is_adapter_directory(files.path()));
  TERRACE_EXPECT_THROW_WITH(AdapterDirectory(files.path()), ConfigError, "adapter_config.json");
  files.write("adapter_config.json", R"({"peft_type": "LORA", "r": 4, "lora_alpha": 4})");
  TERRACE_EXPECT_THROW_WITH(AdapterDirectory(files.path()), ConfigError, "save_pretrained");
}

TEST(AdapterConfigs, OfWhatIsNotBuiltAreRefusedByName) {
  const auto with = [](const std::string& key, const std::string& value) {
    auto keys = nlohmann::json::parse(R"({"peft_type": "LORA", "r": 4, "lora_alpha": 8})");
    keys[key] = nlohmann::json::parse(value);
    return keys.dump();
  };
  const std::vector<std::pair<std::string, std::string>> refused = {
      {"modules_to_save", R"(["lm_head"])"},
      {"layers_to_transform", "[0]"},
      {"layers_to_transform", "0"},
      {"rank_pattern", R"({"q_proj":8})"},
      {"alpha_pattern", R"({"q_proj":8})"},
      {"bias", R"("all")"},
      {"lora_bias", "true"},
      {"layer_replication", "[[0,4]]"},
      {"init_lora_weights", R"("pissa")"},
      {"a_key_of_tomorrow", "1"},
      {"peft_type", R"("LOHA")"},
      {"r", "0"},
      {"r", "2.5"},
      {"lora_alpha", R"("8")"},
  };
  for (const auto& [key, value] : refused) {
    try {
      parse_adapter_config(with(key, value), "adapter_config.json");
      ADD_FAILURE() << key;
    } catch (const ConfigError& error) {
      EXPECT_THAT(error.what(), HasSubstr("adapter_config.json: " + key + " " + value)) << key;
    }
  }
  for (const auto& [key, value] : {std::pair{"modules_to_save", "null"},
                                   {"rank_pattern", "{}"},
                                   {"a_key_of_tomorrow", "false"},
                                   {"init_lora_weights", R"("gaussian")"},
                                   {"bias", R"("none")"},
                                   {"target_modules", R"(".*proj")"}}) {
    EXPECT_EQ(parse_adapter_config(with(key, value), "x").options.rank, 4) << key;
  }
  EXPECT_EQ(parse_adapter_config(with("lora_dropout", "0.25"), "x").dropout, 0.25);
  EXPECT_TRUE(parse_adapter_config(with("use_rslora", "true"), "x").options.is_rank_stabilized);
  TERRACE_EXPECT_THROW_WITH(parse_adapter_config("[]", "x"), ConfigError, "not a JSON object");
}

TEST(AdapterConfigs, KeepAnAlphaThatIsNotWhole) {
  const AdapterConfig config = {.options = {.rank = 3, .alpha = 2.5, .targets = {"q_proj"}}};
  EXPECT_EQ(parse_adapter_config(to_json(config), "x").options.alpha, 2.5);
}

}  // namespace
}  // namespace terrace
