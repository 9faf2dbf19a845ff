#include "runtime/checkpoint/adapter_directory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "runtime/checkpoint/adapter_config.h"
#include "runtime/checkpoint/adapter_manifest.h"
#include "runtime/checkpoint/hf_index.h"
#include "runtime/model/adapter_modules.h"
#include "runtime/model/adapter_patterns.h"
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

ModelConfig with_sizes(ModelConfig config, const std::string& pattern) {
  config.adapter.rank_patterns = {{pattern, 2}};
  config.adapter.alpha_patterns = {{pattern, 5}};
  return with_adapter_sizes(std::move(config), "test");
}

TEST(AdapterDirectories, HoldPatternsOfRanksAndAlphas) {
  const TemporaryDirectory files;
  const ModelConfig config = with_sizes(small_adapted("llama"), "(q|down)_proj");
  write_adapter(files.path("a"), config);
  const ModelConfig read = AdapterDirectory(files.path("a")).adapted(small_base("llama"));
  EXPECT_EQ(read.adapter, config.adapter);
  EXPECT_EQ(read.adapter.size_of("model.layers.1.mlp.down_proj.weight"), (AdapterSize{2, 5}));
  EXPECT_EQ(read.adapter.size_of("model.layers.1.mlp.up_proj.weight"), (AdapterSize{4, 6}));
  auto keys = nlohmann::json::parse(files.read("a/adapter_config.json"));
  EXPECT_EQ(keys["rank_pattern"], nlohmann::json({{"(q|down)_proj", 2}}));
  keys["rank_pattern"] = {{"q_proj", 2}};
  files.write("a/adapter_config.json", keys.dump());
  TERRACE_EXPECT_THROW_WITH(AdapterDirectory(files.path("a")).adapted(small_base("llama")),
                            ConfigError, "should be [4, ");
}

ModelConfig with_whole(std::string_view family, bool tied,
                       const std::vector<std::string>& patterns) {
  const ModelConfig base =
      small_model(family, {.width = 32, .head_width = 8, .intermediate = 48, .tied = tied});
  AdapterOptions adapter = {.rank = 4, .alpha = 6, .targets = {}};
  adapter.whole_modules = modules_that_match(base, patterns);
  return with_adapter(base, adapter, {});
}

ModelConfig without_adapter(ModelConfig config) {
  config.adapter = {};
  return config;
}

TEST(AdapterDirectories, HoldWholeModules) {
  const std::vector<std::pair<ModelConfig, int>> cases = {
      {with_whole("llama", false, {"lm_head.weight", "*.1.mlp.up_proj.*", "norm.weight"}), 3},
      {with_whole("gpt2", true, {"wte.weight", "*.0.mlp.c_fc.*", "ln_f.*"}), 5},
      {with_whole("phi3", false, {"*.qkv_proj.weight"}), 6},
  };
  for (const auto& [config, count] : cases) {
    const TemporaryDirectory files;
    write_adapter(files.path("a"), config);
    const AdapterDirectory adapter(files.path("a"));
    EXPECT_EQ(adapter.adapted(without_adapter(config)).adapter, config.adapter);
    int whole = 0;
    for (const UnitLayout& unit : parameter_layout(config)) {
      for (const ParameterTensor& tensor : unit.tensors) {
        EXPECT_EQ(adapter.has(tensor), tensor.trainable) << tensor.name;
        if (is_adapter(tensor.kind) || !tensor.trainable) continue;
        ++whole;
        std::vector<float> wanted(static_cast<std::size_t>(tensor.elements()));
        std::vector<float> values(wanted.size());
        kFetchRandom(unit, tensor, 0, wanted);
        adapter.read(StateField::kMaster, unit, tensor.offset, values);
        EXPECT_EQ(values, wanted) << tensor.name;
      }
    }
    EXPECT_EQ(whole, count);
  }
}

// The names and shapes are as PEFT has them; a tied head is saved beside the embedding.
TEST(AdapterDirectories, HaveWholeModulesAsPeftHasThem) {
  const TemporaryDirectory files;
  write_adapter(files.path("a"), with_whole("gpt2", true, {"wte.weight", "*.0.mlp.c_fc.*"}));
  const SafetensorsFile file(files.path("a/adapter_model.safetensors"));
  const std::string model = "base_model.model.transformer.";
  const std::vector<std::uint64_t> matrix = {32, 48};
  EXPECT_EQ(file.find(model + "h.0.mlp.c_fc.weight")->shape, matrix);
  EXPECT_EQ(file.find(model + "h.0.mlp.c_fc.bias")->shape, (std::vector<std::uint64_t>{48}));
  const SafetensorsTensor* const head = file.find("base_model.model.lm_head.weight");
  ASSERT_NE(head, nullptr);
  EXPECT_TRUE(same_bytes(file, *head, file, *file.find(model + "wte.weight")));
  const auto keys = nlohmann::json::parse(files.read("a/adapter_config.json"));
  EXPECT_EQ(keys["modules_to_save"],
            nlohmann::json({"lm_head", "transformer.h.0.mlp.c_fc", "wte"}));
  EXPECT_EQ(keys["ensure_weight_tying"], true);
  write_adapter(files.path("b"), with_whole("llama", false, {"lm_head.weight"}));
  const auto untied = nlohmann::json::parse(files.read("b/adapter_config.json"));
  EXPECT_EQ(untied["modules_to_save"], nlohmann::json({"lm_head"}));
  EXPECT_FALSE(untied.contains("ensure_weight_tying"));
}

TEST(AdapterDirectories, RefuseModulesThatDoNotFit) {
  const TemporaryDirectory files;
  const ModelConfig config = with_whole("llama", true, {"embed_tokens.weight"});
  const ModelConfig base = without_adapter(config);
  write_adapter(files.path("a"), config);
  const auto with_modules = [&](const nlohmann::json& modules) {
    auto keys = nlohmann::json::parse(files.read("a/adapter_config.json"));
    keys["modules_to_save"] = modules;
    files.write("a/adapter_config.json", keys.dump());
    return AdapterDirectory(files.path("a"));
  };
  EXPECT_EQ(with_modules({"model.embed_tokens"}).adapted(base).adapter, config.adapter);
  TERRACE_EXPECT_THROW_WITH(with_modules({"embed_tokens", "model.norm"}).adapted(base), ConfigError,
                            "tensor base_model.model.model.norm.weight is missing");
  TERRACE_EXPECT_THROW_WITH(with_modules(nullptr).adapted(base), ConfigError,
                            "embed_tokens.weight belongs to no such layer");
  TERRACE_EXPECT_THROW_WITH(with_modules({"embed_tokens", "1.mlp.up_proj"}).adapted(base),
                            ConfigError, "model.layers.1.mlp.up_proj has an adapter and is one of");
}

// The head of a tied model is its embedding, so both must have the same values.
TEST(AdapterDirectories, RefuseToUntieAHead) {
  const ModelConfig untied = with_whole("llama", false, {"embed_tokens.weight", "lm_head.weight"});
  const ModelConfig base = without_adapter(with_whole("llama", true, {"norm.weight"}));
  const TemporaryDirectory files;
  write_adapter(files.path("apart"), untied);
  TERRACE_EXPECT_THROW_WITH(AdapterDirectory(files.path("apart")).adapted(base), ConfigError,
                            "lm_head.weight differs from base_model.model.model.embed_tokens");
  write_adapter(files.path("head"), with_whole("llama", false, {"lm_head.weight"}));
  TERRACE_EXPECT_THROW_WITH(AdapterDirectory(files.path("head")).adapted(base), ConfigError,
                            "lm_head.weight is there without base_model.model.model.embed_tokens");
  write_adapter(files.path("embedding"), with_whole("llama", false, {"embed_tokens.weight"}));
  TERRACE_EXPECT_THROW_WITH(AdapterDirectory(files.path("embedding")).adapted(base), ConfigError,
                            "embed_tokens.weight is there without base_model.model.lm_head");
}

// In the adapter of a model without its head, names lack the prefix that a pattern may have.
TEST(AdapterDirectories, RefusePatternsThatDependOnTheHead) {
  for (const auto& [pattern, is_refused] :
       {std::pair{"layers.0.*", false}, {"model.layers.0.*", true}}) {
    const TemporaryDirectory files;
    ModelConfig config = small_adapted("llama", {"q_proj"});
    config.adapter.alpha_patterns = {{pattern, 5}};
    write_adapter(files.path("a"), config);
    std::vector<UnitLayout> layout = adapter_layout(config, parameter_layout(config));
    for (UnitLayout& unit : layout) {
      for (ParameterTensor& tensor : unit.tensors) {
        tensor.stored_name.erase(0, std::string_view("base_model.model.model.").size());
        tensor.stored_name.insert(0, "base_model.model.");
      }
    }
    write_hf_tensors(files.path("a/adapter_model.safetensors"), {.usual = DType::kF32}, layout,
                     kFetchRandom);
    const AdapterDirectory adapter(files.path("a"));
    if (is_refused) {
      TERRACE_EXPECT_THROW_WITH(adapter.adapted(small_base("llama")), ConfigError,
                                "matches layers.0.self_attn.q_proj or model.layers.0");
    } else {
      EXPECT_EQ(adapter.adapted(small_base("llama")).adapter.sizes.size(), 1U);
    }
  }
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
      {"modules_to_save", R"("lm_head")"},
      {"modules_to_save", R"([""])"},
      {"layers_to_transform", "[0]"},
      {"layers_to_transform", "0"},
      {"rank_pattern", R"({"q_proj":0})"},
      {"rank_pattern", R"({"q_proj":2.5})"},
      {"rank_pattern", R"(["q_proj"])"},
      {"alpha_pattern", R"({"q_proj":"8"})"},
      {"bias", R"("all")"},
      {"lora_bias", "true"},
      {"layer_replication", "[[0,4]]"},
      {"init_lora_weights", R"("pissa")"},
      {"a_key_of_tomorrow", "1"},
      {"peft_type", R"("LOHA")"},
      {"r", "0"},
      {"r", "2.5"},
      {"lora_dropout", "0.995"},
      {"lora_dropout", "1.0"},
      {"lora_dropout", "-0.1"},
      {"lora_dropout", R"("0.1")"},
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
  EXPECT_TRUE(parse_adapter_config(with("use_rslora", "true"), "x").options.is_rank_stabilized);
  TERRACE_EXPECT_THROW_WITH(parse_adapter_config("[]", "x"), ConfigError, "not a JSON object");
}

// The first pattern that matches a layer counts, so the order of patterns is kept.
TEST(AdapterConfigs, KeepPatternsInTheirOrder) {
  const char* const text = R"({"peft_type": "LORA", "r": 4, "lora_alpha": 8,
      "rank_pattern": {"up_proj": 2, "k_proj": 3}, "alpha_pattern": {"b": 2.5, "a": 1}})";
  const AdapterOptions options = parse_adapter_config(text, "x").options;
  EXPECT_EQ(options.rank_patterns,
            (std::vector<LayerPattern<std::int64_t>>{{"up_proj", 2}, {"k_proj", 3}}));
  EXPECT_EQ(options.alpha_patterns, (std::vector<LayerPattern<double>>{{"b", 2.5}, {"a", 1}}));
  const std::string written = to_json({.options = options});
  EXPECT_THAT(written, HasSubstr("\"k_proj\": 3"));
  EXPECT_THAT(written, HasSubstr("\"a\": 1\n"));
  EXPECT_EQ(parse_adapter_config(written, "x").options, options);
  EXPECT_EQ(parse_adapter_options(to_json(options)), options);
}

// The dropout is the same in adapter_config.json and in a checkpoint's manifest.
TEST(AdapterConfigs, KeepTheDropout) {
  for (const double dropout : {0.0, 0.05, 0.1, 0.3, 0.99}) {
    const AdapterConfig config = {
        .options = {.rank = 3, .alpha = 6, .dropout = dropout, .targets = {"q_proj"}}};
    EXPECT_EQ(parse_adapter_config(to_json(config), "x").options.dropout, dropout);
    EXPECT_EQ(parse_adapter_options(to_json(config.options)), config.options);
  }
  EXPECT_THAT(to_json(AdapterConfig{.options = {.rank = 3, .dropout = 0.1, .targets = {}}}),
              HasSubstr("\"lora_dropout\": 0.1,"));
  const auto refuses = [](const char* dropout) {
    const std::string text = fmt::format(
        R"({{"peft_type": "LORA", "r": 4, "lora_alpha": 8, "lora_dropout": {}}})", dropout);
    TERRACE_EXPECT_THROW_WITH(parse_adapter_config(text, "x"), ConfigError,
                              "is not from 0 to 0.99");
  };
  for (const char* dropout : {"0.995", "1", "-0.1"}) refuses(dropout);
}

TEST(AdapterConfigs, KeepAnAlphaThatIsNotWhole) {
  const AdapterConfig config = {.options = {.rank = 3, .alpha = 2.5, .targets = {"q_proj"}}};
  EXPECT_EQ(parse_adapter_config(to_json(config), "x").options.alpha, 2.5);
}

}  // namespace
}  // namespace terrace
