#include "runtime/checkpoint/hf_directory.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "base/half.h"
#include "runtime/checkpoint/hf_export.h"
#include "runtime/checkpoint/hf_weight_files.h"
#include "runtime/model/model_shape.h"
#include "tests/runtime/checkpoint/hf_fixture.h"
#include "tests/runtime/model/small_models.h"
#include "tests/runtime/temporary_directory.h"

namespace terrace {
namespace {

using Json = nlohmann::json;

ModelConfig tiny(std::string_view family, bool tied) {
  Json json;
  if (family == "gpt2") {
    json = {{"model_type", "gpt2"}, {"n_embd", 8},      {"n_layer", 2},
            {"n_head", 2},          {"n_positions", 6}, {"vocab_size", 11}};
  } else {
    json = {{"model_type", "llama"},       {"hidden_size", 8},         {"intermediate_size", 12},
            {"num_hidden_layers", 2},      {"num_attention_heads", 2}, {"vocab_size", 11},
            {"max_position_embeddings", 6}};
  }
  json["tie_word_embeddings"] = tied;
  json["torch_dtype"] = "float32";
  return parse_model_config(json.dump(), "config.json");
}

std::vector<float> random_values(const ParameterTensor& tensor) {
  std::vector<float> values(static_cast<std::size_t>(tensor.elements()));
  kFetchRandom({}, tensor, 0, values);
  return values;
}

void export_tiny(const TemporaryDirectory& temporary, const ModelConfig& config, DType dtype,
                 std::uint64_t max_shard_bytes = 5'000'000'000) {
  write_hf_directory(
      {.directory = temporary.path("m"), .types = {dtype}, .max_shard_bytes = max_shard_bytes},
      config, parameter_layout(config), kFetchRandom);
}

// Writes "m/<file>" with the given tensors, all F32 zeros unless `data` says otherwise.
void write_tensors(const TemporaryDirectory& temporary, const std::string& file,
                   const std::vector<SafetensorsTensor>& tensors, const std::string& data = "") {
  std::filesystem::create_directories(temporary.path("m"));
  SafetensorsWriter writer(temporary.path("m/" + file), {.tensors = tensors, .metadata = {}});
  const std::string bytes =
      data.empty() ? std::string(writer.header().tensors.back().end, '\0') : data;
  writer.append(std::as_bytes(std::span(bytes)));
  writer.finish();
}

std::vector<SafetensorsTensor> tensors_of(const ModelConfig& config, SafetensorsType type) {
  std::vector<SafetensorsTensor> tensors;
  for (const UnitLayout& unit : parameter_layout(config)) {
    for (const ParameterTensor& tensor : unit.tensors) {
      SafetensorsTensor& stored = tensors.emplace_back();
      stored.name = tensor.name;
      stored.type = type;
      const auto rows = static_cast<std::uint64_t>(tensor.rows);
      const auto columns = static_cast<std::uint64_t>(tensor.columns);
      stored.shape = {rows, columns};
      if (tensor.stored_transposed) stored.shape = {columns, rows};
      if (tensor.is_vector) stored.shape = {rows};
    }
  }
  return tensors;
}

void expect_same(const ModelConfig& config, const HfDirectory& directory, DType dtype) {
  for (const UnitLayout& unit : parameter_layout(config)) {
    for (const ParameterTensor& tensor : unit.tensors) {
      std::vector<float> wanted = random_values(tensor);
      if (dtype == DType::kBF16) {
        for (float& value : wanted) value = to_float(to_bf16_ties_away(value));
      } else if (dtype == DType::kF16) {
        for (float& value : wanted) value = to_float(to_fp16_nearest_even(value));
      }
      std::vector<float> got(wanted.size());
      directory.read(tensor, 0, got);
      EXPECT_EQ(got, wanted) << tensor.name;
      for (std::int64_t begin = 0; begin < tensor.elements(); begin += 5) {
        const auto count = std::min<std::int64_t>(7, tensor.elements() - begin);
        std::vector<float> part(static_cast<std::size_t>(count));
        directory.read(tensor, begin, part);
        EXPECT_TRUE(std::equal(part.begin(), part.end(), wanted.begin() + begin))
            << tensor.name << " at " << begin;
      }
    }
  }
}

// This is like a file that may not be changed: fs::remove refuses a directory that contains files.
TEST(HfExport, NamesTheFileThatCannotBeRemoved) {
  const TemporaryDirectory temporary;
  const ModelConfig config = tiny("llama", true);
  temporary.write("final/config.json/x", "");
  TERRACE_EXPECT_THROW_WITH(write_hf_directory({.directory = temporary.path("final")}, config,
                                               parameter_layout(config), kFetchRandom),
                            IoError,
                            "remove of " + temporary.path("final/config.json") + " failed");
}

TEST(HfDirectory, RoundTrip) {
  for (const std::string_view family : {"gpt2", "llama"}) {
    for (const bool tied : {false, true}) {
      for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
        for (const std::uint64_t limit : {std::uint64_t{5'000'000'000}, std::uint64_t{700}}) {
          const TemporaryDirectory temporary;
          const ModelConfig config = tiny(family, tied);
          export_tiny(temporary, config, dtype, limit);
          EXPECT_EQ(temporary.has("m/model.safetensors"), limit > 700);
          EXPECT_EQ(temporary.has("m/model.safetensors.index.json"), limit == 700);
          ListLog log;
          const HfDirectory directory(temporary.path("m"), config, parameter_layout(config), log);
          expect_same(config, directory, dtype);
          EXPECT_TRUE(log.warnings.empty());
          const ModelConfig back = load_model_config(temporary.path("m"));
          EXPECT_EQ(back.tied, tied);
          EXPECT_EQ(back.width, 8);
        }
      }
    }
  }
}

TEST(HfDirectory, Conv1dIsStoredAsInOut) {
  const TemporaryDirectory temporary;
  const ModelConfig config = tiny("gpt2", true);
  export_tiny(temporary, config, DType::kF32);
  const SafetensorsFile file(temporary.path("m/model.safetensors"));
  const SafetensorsTensor* stored = file.find("transformer.h.0.attn.c_attn.weight");
  ASSERT_NE(stored, nullptr);
  EXPECT_EQ(stored->shape, (std::vector<std::uint64_t>{8, 24}));
  std::vector<float> bytes(8 * 24);
  file.read(*stored, 0, std::as_writable_bytes(std::span(bytes)));
  const UnitLayout block = parameter_layout(config)[1];
  const std::vector<float> ours = random_values(tensor_named(block, "c_attn.weight"));
  for (std::size_t in = 0; in < 8; ++in) {
    for (std::size_t out = 0; out < 24; ++out) EXPECT_EQ(bytes[in * 24 + out], ours[out * 8 + in]);
  }
  EXPECT_NE(file.find("transformer.wte.weight"), nullptr);
  EXPECT_EQ(file.find("lm_head.weight"), nullptr);
  EXPECT_EQ(file.header().metadata.at("format"), "pt");
}

// The tensors are larger than the buffers, and one part is read from the middle.
TEST(HfDirectory, LargeTransposedTensors) {
  const TemporaryDirectory temporary;
  ModelConfig config = with_shape(tiny("gpt2", true), {.layers = 1, .width = 360});
  config.intermediate = 3000;
  export_tiny(temporary, config, DType::kF32);
  ListLog log;
  const HfDirectory directory(temporary.path("m"), config, parameter_layout(config), log);
  const UnitLayout block = parameter_layout(config)[1];
  const ParameterTensor& tensor = tensor_named(block, "mlp.c_fc.weight");
  const std::vector<float> wanted = random_values(tensor);
  std::vector<float> got(wanted.size());
  directory.read(tensor, 0, got);
  EXPECT_TRUE(got == wanted);
  std::vector<float> part(5000);
  directory.read(tensor, 123'457, part);
  EXPECT_TRUE(std::equal(part.begin(), part.end(), wanted.begin() + 123'457));
}

TEST(HfDirectory, ParametersAreFetchedInOrderAndInBoundedRanges) {
  const TemporaryDirectory temporary;
  ModelConfig config = tiny("llama", false);
  config.vocabulary = 300'000;
  const std::vector<UnitLayout> layout = parameter_layout(config);
  std::vector<std::string> order;
  std::int64_t expected = 0;
  std::size_t largest = 0;
  write_hf_directory({.directory = temporary.path("m")}, config, layout,
                     [&](const UnitLayout& unit, const ParameterTensor& tensor, std::int64_t begin,
                         std::span<float> out) {
                       if (order.empty() || order.back() != tensor.name) expected = 0;
                       if (expected == 0) order.push_back(tensor.name);
                       EXPECT_EQ(begin, expected);
                       EXPECT_EQ(unit.find(tensor.kind), &tensor);
                       expected = begin + static_cast<std::int64_t>(out.size());
                       largest = std::max(largest, out.size());
                       std::fill(out.begin(), out.end(), 0.0F);
                     });
  std::vector<std::string> wanted;
  for (const UnitLayout& unit : layout) {
    for (const ParameterTensor& tensor : unit.tensors) wanted.push_back(tensor.name);
  }
  EXPECT_EQ(order, wanted);
  EXPECT_EQ(largest, std::size_t{1} << 20);
}

TEST(HfDirectory, ShardsAndIndexFollowTheHubsConvention) {
  const TemporaryDirectory temporary;
  const ModelConfig config = tiny("llama", true);
  export_tiny(temporary, config, DType::kF32, 700);
  const Json index = Json::parse(temporary.read("m/model.safetensors.index.json"));
  std::uint64_t total = 0;
  std::set<std::string> files;
  for (const auto& [name, file] : index.at("weight_map").items()) {
    const SafetensorsFile shard(temporary.path("m/" + file.get<std::string>()));
    ASSERT_NE(shard.find(name), nullptr) << name;
    total += shard.find(name)->size_bytes();
    if (files.insert(file.get<std::string>()).second && shard.header().tensors.size() > 1) {
      EXPECT_LE(shard.header().tensors.back().end, 700U);
    }
  }
  EXPECT_EQ(index.at("metadata").at("total_size"), total);
  EXPECT_EQ(total, 4 * static_cast<std::uint64_t>(parameter_count(parameter_layout(config))));
  const std::string last = fmt::format("model-{0:05}-of-{0:05}.safetensors", files.size());
  EXPECT_EQ(*files.rbegin(), last);
  EXPECT_GT(files.size(), 3U);
}

TEST(HfDirectory, AnEarlierExportLeavesNothingBehind) {
  const TemporaryDirectory temporary;
  const ModelConfig config = tiny("llama", true);
  export_tiny(temporary, config, DType::kF32, 700);
  temporary.write("m/tokenizer.json", "{}");
  temporary.write("m/model-of-mine.safetensors", "not one of an export");
  export_tiny(temporary, config, DType::kF32);
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(temporary.path("m"))) {
    names.insert(entry.path().filename().string());
  }
  EXPECT_EQ(names, (std::set<std::string>{"config.json", "model-of-mine.safetensors",
                                          "model.safetensors", "tokenizer.json"}));
}

TEST(HfDirectory, OnlyTheDtypeKeyOfConfigJsonChanges) {
  const std::string json = "{\n \"z\": 1,\n \"torch_dtype\": \"float32\", \"a\": 1e-05\n}";
  EXPECT_EQ(config_json_with_dtype(json, DType::kF32), json);
  const std::string changed = config_json_with_dtype(json, DType::kBF16);
  EXPECT_EQ(Json::parse(changed), Json::parse(R"({"z":1,"torch_dtype":"bfloat16","a":1e-05})"));
  EXPECT_LT(changed.find("\"z\""), changed.find("\"a\""));
  EXPECT_EQ(Json::parse(config_json_with_dtype(R"({"dtype":"float16"})", DType::kF32)),
            Json::parse(R"({"dtype":"float32"})"));
  EXPECT_EQ(Json::parse(config_json_with_dtype("{}", DType::kBF16)),
            Json::parse(R"({"torch_dtype":"bfloat16"})"));
  EXPECT_EQ(Json::parse(config_json_with_dtype("{}", DType::kF16)),
            Json::parse(R"({"torch_dtype":"float16"})"));
  const std::string changed_beside_infinity = config_json_with_dtype(
      R"({"a":-Infinity,"b":"NaN, Infinity","c":[NaN],"dtype":"float16"})", DType::kF32);
  EXPECT_NE(changed_beside_infinity.find(R"("a": -Infinity)"), std::string::npos);
  EXPECT_NE(changed_beside_infinity.find(R"("b": "NaN, Infinity")"), std::string::npos);
  EXPECT_NE(changed_beside_infinity.find("    NaN\n"), std::string::npos);
  EXPECT_NE(changed_beside_infinity.find(R"("dtype": "float32")"), std::string::npos);
}

TEST(HfDirectory, HalfPrecisionIsReadExactly) {
  const TemporaryDirectory temporary;
  const ModelConfig config = tiny("llama", true);
  std::vector<SafetensorsTensor> tensors = tensors_of(config, SafetensorsType::kF16);
  const std::vector<std::uint16_t> halves = {0x3c00, 0xc000, 0x0001, 0x03ff, 0x0400, 0x7bff,
                                             0x8000, 0x7c00, 0xfc00, 0x3555, 0x8001};
  SafetensorsHeader header{.tensors = tensors, .metadata = {}};
  make_safetensors_header(header, 8);
  std::string data(header.tensors.back().end, '\0');
  std::memcpy(data.data(), halves.data(), 2 * halves.size());
  write_tensors(temporary, "model.safetensors", tensors, data);
  ListLog log;
  const HfDirectory directory(temporary.path("m"), config, parameter_layout(config), log);
  std::vector<float> got(halves.size());
  directory.read(parameter_layout(config)[0].tensors[0], 0, got);
  const std::vector<float> wanted = {1.0F,
                                     -2.0F,
                                     0x1.0p-24F,
                                     1023 * 0x1.0p-24F,
                                     0x1.0p-14F,
                                     65504.0F,
                                     -0.0F,
                                     std::numeric_limits<float>::infinity(),
                                     -std::numeric_limits<float>::infinity(),
                                     0x1.554p-2F,
                                     -0x1.0p-24F};
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    EXPECT_EQ(std::bit_cast<std::uint32_t>(got[i]), std::bit_cast<std::uint32_t>(wanted[i])) << i;
  }
}

TEST(HfDirectory, Gpt2PrefixIsOptionalAndBuffersAreSkipped) {
  const TemporaryDirectory temporary;
  const ModelConfig config = tiny("gpt2", true);
  std::vector<SafetensorsTensor> tensors = tensors_of(config, SafetensorsType::kF32);
  SafetensorsTensor& mask = tensors.emplace_back();
  mask.name = "h.0.attn.bias";
  mask.type = SafetensorsType::kU8;
  mask.shape = {1, 1, 6, 6};
  tensors.emplace_back().name = "h.1.attn.masked_bias";
  write_tensors(temporary, "model.safetensors", tensors);
  ListLog log;
  const HfDirectory directory(temporary.path("m"), config, parameter_layout(config), log);
  EXPECT_TRUE(log.warnings.empty());
  std::vector<float> bias(24, 1.0F);
  directory.read(tensor_named(parameter_layout(config)[1], "c_attn.bias"), 0, bias);
  EXPECT_EQ(bias, std::vector<float>(24, 0.0F));
}

// LlamaModel, which has no head, writes its tensors without the prefix.
TEST(HfDirectory, LlamaPrefixIsOptional) {
  const TemporaryDirectory temporary;
  const ModelConfig config = tiny("llama", true);
  std::vector<SafetensorsTensor> tensors = tensors_of(config, SafetensorsType::kF32);
  const std::string prefix = "model.";
  for (SafetensorsTensor& tensor : tensors) {
    ASSERT_TRUE(tensor.name.starts_with(prefix));
    tensor.name.erase(0, prefix.size());
  }
  write_tensors(temporary, "model.safetensors", tensors);
  ListLog log;
  const HfDirectory directory(temporary.path("m"), config, parameter_layout(config), log);
  EXPECT_TRUE(log.warnings.empty());
  std::vector<float> norm(8, 1.0F);
  directory.read(tensor_named(parameter_layout(config)[1], "input_layernorm.weight"), 0, norm);
  EXPECT_EQ(norm, std::vector<float>(8, 0.0F));
}

TEST(HfDirectory, TellsWhyBytesMayNotBeItsIds) {
  const TemporaryDirectory temporary;
  ModelConfig config = tiny("llama", true);
  config.vocabulary = 256;
  EXPECT_EQ(why_bytes_are_foreign(temporary.path("m"), config), "");
  config.vocabulary = 50257;
  EXPECT_NE(why_bytes_are_foreign(temporary.path("m"), config).find("50257"), std::string::npos);
  config.vocabulary = 256;
  temporary.write("m/tokenizer.json", "{}");
  EXPECT_NE(why_bytes_are_foreign(temporary.path("m"), config).find("tokenizer.json"),
            std::string::npos);
}

TEST(HfDirectory, UnexpectedTensorsAreToldOnce) {
  const TemporaryDirectory temporary;
  const ModelConfig config = tiny("llama", true);
  std::vector<SafetensorsTensor> tensors = tensors_of(config, SafetensorsType::kF32);
  for (int i = 0; i < 12; ++i) {
    tensors.emplace_back().name = fmt::format("model.layers.{}.self_attn.q_norm.weight", i);
  }
  tensors.emplace_back().name = "model.layers.0.self_attn.rotary_emb.inv_freq";
  write_tensors(temporary, "model.safetensors", tensors);
  ListLog log;
  const HfDirectory directory(temporary.path("m"), config, parameter_layout(config), log);
  ASSERT_EQ(log.warnings.size(), 1U);
  EXPECT_NE(log.warnings[0].find("12 tensors"), std::string::npos) << log.warnings[0];
  EXPECT_NE(log.warnings[0].find("model.layers.0.self_attn.q_norm.weight"), std::string::npos);
  EXPECT_EQ(log.warnings[0].find("inv_freq"), std::string::npos);
}

// transformers 5 keeps a head that differs, so dropping it would give another model.
TEST(HfDirectory, AStoredHeadOfATiedModelIsComparedWithTheEmbedding) {
  for (const char difference : {'\0', '\1'}) {
    const TemporaryDirectory temporary;
    const ModelConfig config = tiny("llama", true);
    std::vector<SafetensorsTensor> tensors = tensors_of(config, SafetensorsType::kF32);
    SafetensorsTensor& head = tensors.emplace_back();
    head.name = "lm_head.weight";
    head.shape = {11, 8};
    SafetensorsHeader header{.tensors = tensors, .metadata = {}};
    make_safetensors_header(header, 8);
    std::string data(header.tensors.back().end, '\0');
    data.back() = difference;
    write_tensors(temporary, "model.safetensors", tensors, data);
    ListLog log;
    const auto open = [&] {
      const HfDirectory directory(temporary.path("m"), config, parameter_layout(config), log);
    };
    if (difference == '\0') {
      EXPECT_NO_THROW(open());
    } else {
      TERRACE_EXPECT_THROW_WITH(open(), ConfigError, "\"tie_word_embeddings\": false");
    }
    EXPECT_TRUE(log.warnings.empty());
  }
}

TEST(HfDirectory, TellsAndKeepsTheTypesOfItsTensors) {
  const TemporaryDirectory temporary;
  const ModelConfig config = tiny("gpt2", true);
  std::vector<SafetensorsTensor> tensors = tensors_of(config, SafetensorsType::kBF16);
  std::vector<std::string> norms;
  for (SafetensorsTensor& tensor : tensors) {
    if (tensor.name.find("ln_") == std::string::npos) continue;
    tensor.type = SafetensorsType::kF32;
    norms.push_back(tensor.name);
  }
  write_tensors(temporary, "model.safetensors", tensors);
  ListLog log;
  const std::vector<UnitLayout> layout = parameter_layout(config);
  const WeightTypes types = HfDirectory(temporary.path("m"), config, layout, log).types();
  EXPECT_EQ(types.usual, DType::kBF16);
  EXPECT_EQ(types.others.size(), norms.size());
  for (const std::string& norm : norms) EXPECT_EQ(types.of(norm), DType::kF32) << norm;
  write_hf_directory({.directory = temporary.path("again"), .types = types}, config, layout,
                     kFetchRandom);
  EXPECT_EQ(HfDirectory(temporary.path("again"), config, layout, log).types(), types);
  EXPECT_EQ(Json::parse(temporary.read("again/config.json")).at("torch_dtype"), "bfloat16");
}

// Otherwise infinity would come back, with an exit code of 0.
TEST(HfDirectory, ValuesThatATypeDoesNotHoldAreNotExported) {
  const TemporaryDirectory temporary;
  const ModelConfig config = tiny("llama", true);
  const auto fetch = [](const UnitLayout&, const ParameterTensor& tensor, std::int64_t,
                        std::span<float> out) {
    std::fill(out.begin(), out.end(), tensor.name == "model.norm.weight" ? 65536.0F : 1.0F);
  };
  const auto save = [&](DType dtype) {
    write_hf_directory({.directory = temporary.path("m"), .types = {dtype}}, config,
                       parameter_layout(config), fetch);
  };
  EXPECT_NO_THROW(save(DType::kBF16));
  TERRACE_EXPECT_THROW_WITH(save(DType::kF16), ConfigError, "model.norm.weight");
  EXPECT_FALSE(temporary.has("m/config.json"));
}

class HfDirectoryRefuses : public testing::Test {
 protected:
  void open() {
    ListLog log;
    const HfDirectory directory(temporary_.path("m"), config_, parameter_layout(config_), log);
  }

  const TemporaryDirectory temporary_;
  const ModelConfig config_ = tiny("llama", false);
};

TEST_F(HfDirectoryRefuses, MissingTensors) {
  std::vector<SafetensorsTensor> tensors = tensors_of(config_, SafetensorsType::kF32);
  const auto head = std::find_if(tensors.begin(), tensors.end(),
                                 [](const auto& each) { return each.name == "lm_head.weight"; });
  tensors.erase(head);
  write_tensors(temporary_, "model.safetensors", tensors);
  TERRACE_EXPECT_THROW_WITH(open(), ConfigError, "lm_head.weight");
  tensors.erase(tensors.begin() + 3);
  const std::string gone = tensors_of(config_, SafetensorsType::kF32)[3].name;
  write_tensors(temporary_, "model.safetensors", tensors);
  TERRACE_EXPECT_THROW_WITH(open(), ConfigError, gone);
}

TEST_F(HfDirectoryRefuses, WrongShapesAndTypes) {
  std::vector<SafetensorsTensor> tensors = tensors_of(config_, SafetensorsType::kF32);
  tensors[5].shape[0] += 1;
  write_tensors(temporary_, "model.safetensors", tensors);
  TERRACE_EXPECT_THROW_WITH(open(), ConfigError, tensors[5].name);
  tensors[5].shape[0] -= 1;
  tensors[6].type = SafetensorsType::kI32;
  write_tensors(temporary_, "model.safetensors", tensors);
  TERRACE_EXPECT_THROW_WITH(open(), ConfigError, "I32");
}

TEST_F(HfDirectoryRefuses, DirectoriesWithoutSafetensors) {
  std::filesystem::create_directories(temporary_.path("m"));
  EXPECT_FALSE(has_hf_weights(temporary_.path("m")));
  EXPECT_FALSE(has_hf_weights("llama-8b"));
  TERRACE_EXPECT_THROW_WITH(open(), ConfigError, "model.safetensors");
  temporary_.write("m/pytorch_model-00001-of-00002.bin", "x");
  try {
    open();
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_NE(error.remedy().find("save_pretrained"), std::string::npos);
  }
}

TEST_F(HfDirectoryRefuses, IndexesThatDoNotMatchTheFiles) {
  const std::vector<SafetensorsTensor> tensors = tensors_of(config_, SafetensorsType::kF32);
  write_tensors(temporary_, "a.safetensors", tensors);
  EXPECT_FALSE(has_hf_weights(temporary_.path("m")));
  const auto index_with = [&](const Json& map) {
    temporary_.write("m/model.safetensors.index.json", Json{{"weight_map", map}}.dump());
  };
  Json map;
  for (const SafetensorsTensor& tensor : tensors) map[tensor.name] = "a.safetensors";
  index_with(map);
  EXPECT_NO_THROW(open());
  map["extra"] = "a.safetensors";
  index_with(map);
  TERRACE_EXPECT_THROW_WITH(open(), CorruptData, "extra");
  map["extra"] = "b.safetensors";
  index_with(map);
  TERRACE_EXPECT_THROW_WITH(open(), ConfigError, "b.safetensors");
  map["extra"] = "../a.safetensors";
  index_with(map);
  TERRACE_EXPECT_THROW_WITH(open(), CorruptData, "../a.safetensors");
  write_tensors(temporary_, "b.safetensors", {tensors[0]});
  map["extra"] = "b.safetensors";
  index_with(map);
  TERRACE_EXPECT_THROW_WITH(open(), CorruptData, tensors[0].name);
  temporary_.write("m/model.safetensors.index.json", "{}");
  TERRACE_EXPECT_THROW_WITH(open(), CorruptData, "index");
}

// Ranks compare the fingerprint, as each may have a copy of its own.
TEST(HfDirectory, FingerprintIsOfEachTensorsContent) {
  const TemporaryDirectory temporary;
  ListLog log;
  const ModelConfig config = tiny("llama", true);
  const auto fingerprint = [&] {
    return HfDirectory(temporary.path("m"), config, parameter_layout(config), log).fingerprint();
  };
  const auto tensors = tensors_of(config, SafetensorsType::kF32);
  write_tensors(temporary, "model.safetensors", tensors);
  const std::uint64_t zeros = fingerprint();
  EXPECT_EQ(fingerprint(), zeros);
  write_tensors(temporary, "model.safetensors", tensors_of(config, SafetensorsType::kBF16));
  EXPECT_NE(fingerprint(), zeros);
  // Changes one value of the last tensor.
  write_tensors(temporary, "model.safetensors", tensors);
  const std::string path = temporary.path("m/model.safetensors");
  std::fstream(path, std::ios::in | std::ios::out | std::ios::binary)
      .seekp(-1, std::ios::end)
      .put('\x3f');
  EXPECT_NE(fingerprint(), zeros);
}

}  // namespace
}  // namespace terrace
