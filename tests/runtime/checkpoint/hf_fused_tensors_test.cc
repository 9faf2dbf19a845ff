#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "runtime/checkpoint/hf_directory.h"
#include "runtime/checkpoint/hf_export.h"
#include "runtime/checkpoint/hf_weight_files.h"
#include "tests/runtime/checkpoint/fused_names.h"
#include "tests/runtime/checkpoint/hf_fixture.h"
#include "tests/runtime/model/small_models.h"
#include "tests/runtime/temporary_directory.h"

// Parameters that Hugging Face stores as the rows of one tensor.
namespace terrace {
namespace {

using Json = nlohmann::json;

struct Stored {
  SafetensorsTensor header;
  std::vector<std::byte> bytes;
};
using StoredTensors = std::map<std::string, Stored>;

StoredTensors read_all(const std::string& path) {
  const SafetensorsFile file(path);
  StoredTensors tensors;
  for (const SafetensorsTensor& tensor : file.header().tensors) {
    Stored& stored = tensors[tensor.name];
    stored.header = tensor;
    stored.bytes.resize(tensor.size_bytes());
    file.read(tensor, 0, stored.bytes);
  }
  return tensors;
}

// Replaces the tensors of these names by one tensor with all their rows.
void fuse(StoredTensors& tensors, const std::vector<std::string>& names, const std::string& name) {
  Stored whole = tensors.at(names.front());
  whole.header.name = name;
  tensors.erase(names.front());
  for (std::size_t i = 1; i < names.size(); ++i) {
    const Stored& part = tensors.at(names[i]);
    whole.header.shape[0] += part.header.shape[0];
    whole.bytes.insert(whole.bytes.end(), part.bytes.begin(), part.bytes.end());
    tensors.erase(names[i]);
  }
  tensors[name] = std::move(whole);
}

class HfFusedTensors : public testing::Test {
 protected:
  static constexpr SmallModel kSizes = {.width = 8,
                                        .heads = 4,
                                        .key_value_heads = 2,
                                        .head_width = 2,
                                        .intermediate = 12,
                                        .vocabulary = 11,
                                        .positions = 6,
                                        .bias = true};

  // Returns the export of a model that stores each parameter on its own, fused by hand.
  StoredTensors put_together(DType dtype) const {
    save("split", split_, {.usual = dtype});
    StoredTensors tensors = read_all(temporary_.path("split/model.safetensors"));
    for (const std::string layer : {"model.layers.0.", "model.layers.1."}) {
      const std::string heads = layer + "self_attn.";
      const std::string inner = layer + "mlp.";
      for (const std::string what : {".weight", ".bias"}) {
        fuse(tensors, {heads + "q_proj" + what, heads + "k_proj" + what, heads + "v_proj" + what},
             heads + "qkv_proj" + what);
        fuse(tensors, {inner + "gate_proj" + what, inner + "up_proj" + what},
             inner + "gate_up_proj" + what);
      }
    }
    return tensors;
  }

  void write(const std::string& directory, const StoredTensors& tensors) const {
    std::filesystem::create_directories(temporary_.path(directory));
    SafetensorsHeader header;
    for (const auto& [name, stored] : tensors) header.tensors.push_back(stored.header);
    SafetensorsWriter writer(temporary_.path(directory + "/model.safetensors"), header);
    for (const auto& [name, stored] : tensors) writer.append(stored.bytes);
    writer.finish();
  }

  void save(const std::string& directory, const ModelConfig& config, const WeightTypes& types,
            std::uint64_t max_shard_bytes = 5'000'000'000) const {
    write_hf_directory({.directory = temporary_.path(directory),
                        .types = types,
                        .max_shard_bytes = max_shard_bytes},
                       config, parameter_layout(config), kFetchRandom);
  }

  HfDirectory open(const std::string& directory, const ModelConfig& config) {
    return HfDirectory(temporary_.path(directory), config, parameter_layout(config), log_);
  }

  const TemporaryDirectory temporary_;
  const ModelConfig split_ = small_model("llama", kSizes);
  const ModelConfig fused_ = with_fused_names(split_);
  ListLog log_;
};

TEST_F(HfFusedTensors, LoadAsTheTensorsOfTheirParameters) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    write("fused", put_together(dtype));
    const HfDirectory split = open("split", split_);
    const HfDirectory fused = open("fused", fused_);
    for (const UnitLayout& unit : parameter_layout(fused_)) {
      for (const ParameterTensor& tensor : unit.tensors) {
        for (std::int64_t begin = 0; begin < tensor.elements(); begin += 5) {
          const auto count = std::min<std::int64_t>(7, tensor.elements() - begin);
          std::vector<float> wanted(static_cast<std::size_t>(count));
          std::vector<float> got(wanted.size());
          const UnitLayout own = parameter_layout(split_).at(static_cast<std::size_t>(unit.index));
          split.read(*own.find(tensor.kind), begin, wanted);
          fused.read(tensor, begin, got);
          EXPECT_EQ(got, wanted) << tensor.name << " at " << begin;
        }
      }
    }
  }
  EXPECT_TRUE(log_.warnings.empty());
}

TEST_F(HfFusedTensors, AreExportedWithTheSameBytes) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    const StoredTensors wanted = put_together(dtype);
    save("again", fused_, {.usual = dtype});
    const StoredTensors got = read_all(temporary_.path("again/model.safetensors"));
    ASSERT_EQ(got.size(), wanted.size());
    for (const auto& [name, stored] : wanted) {
      ASSERT_TRUE(got.contains(name)) << name;
      EXPECT_EQ(got.at(name).header.shape, stored.header.shape) << name;
      EXPECT_EQ(got.at(name).header.type, stored.header.type) << name;
      EXPECT_EQ(got.at(name).bytes, stored.bytes) << name;
    }
  }
}

// The limit is above the size of each parameter, and below the size of q|k|v and of gate|up.
TEST_F(HfFusedTensors, AreNotCutByShards) {
  constexpr std::uint64_t kLimit = 400;
  save("m", fused_, {.usual = DType::kF32}, kLimit);
  const Json index = Json::parse(temporary_.read("m/model.safetensors.index.json"));
  std::set<std::string> files;
  for (const auto& [name, file] : index.at("weight_map").items()) files.insert(file);
  std::set<std::string> names;
  std::set<std::string> alone;
  std::uint64_t total = 0;
  for (const std::string& file : files) {
    const SafetensorsFile shard(temporary_.path("m/" + file));
    const auto& tensors = shard.header().tensors;
    for (const SafetensorsTensor& tensor : tensors) {
      EXPECT_TRUE(names.insert(tensor.name).second) << tensor.name;
      EXPECT_EQ(index.at("weight_map").at(tensor.name), file);
      total += tensor.size_bytes();
    }
    if (tensors.back().end > kLimit) {
      EXPECT_EQ(tensors.size(), 1U) << file;
      alone.insert(tensors.front().name);
    }
  }
  EXPECT_EQ(index.at("metadata").at("total_size"), total);
  EXPECT_TRUE(alone.contains("model.layers.1.self_attn.qkv_proj.weight"));
  EXPECT_TRUE(alone.contains("model.layers.1.mlp.gate_up_proj.weight"));
  const HfDirectory shards = open("m", fused_);
  save("whole", fused_, {.usual = DType::kF32});
  EXPECT_EQ(shards.fingerprint(), open("whole", fused_).fingerprint());
}

// Each element of a stored tensor counts once, not once for each parameter.
TEST_F(HfFusedTensors, KeepTheirTypes) {
  StoredTensors tensors = put_together(DType::kBF16);
  const StoredTensors wide = put_together(DType::kF32);
  std::int64_t narrow_elements = 0;
  std::int64_t wide_elements = 0;
  for (auto& [name, stored] : tensors) {
    const bool is_wide = name.ends_with("qkv_proj.weight") || name.ends_with("gate_up_proj.weight");
    const auto elements = static_cast<std::int64_t>(stored.header.elements());
    (is_wide ? wide_elements : narrow_elements) += elements;
    if (is_wide) stored = wide.at(name);
  }
  ASSERT_LT(wide_elements, narrow_elements);
  ASSERT_LT(narrow_elements, 2 * wide_elements);
  write("mixed", tensors);
  const WeightTypes types = open("mixed", fused_).types();
  EXPECT_EQ(types.usual, DType::kBF16);
  EXPECT_EQ(types.others.size(), 2U * (3 + 2));
  EXPECT_EQ(types.of("model.layers.1.self_attn.k_proj.weight"), DType::kF32);
  save("again", fused_, types);
  EXPECT_EQ(open("again", fused_).types(), types);
  const StoredTensors again = read_all(temporary_.path("again/model.safetensors"));
  for (const auto& [name, stored] : tensors) EXPECT_EQ(again.at(name).bytes, stored.bytes) << name;
}

TEST_F(HfFusedTensors, ChangeTheFingerprintByEachParameter) {
  StoredTensors tensors = put_together(DType::kF32);
  write("fused", tensors);
  const std::uint64_t before = open("fused", fused_).fingerprint();
  EXPECT_EQ(open("fused", fused_).fingerprint(), before);
  std::vector<std::byte>& bytes = tensors.at("model.layers.1.mlp.gate_up_proj.weight").bytes;
  bytes.back() ^= std::byte{1};
  write("fused", tensors);
  EXPECT_NE(open("fused", fused_).fingerprint(), before);
}

TEST_F(HfFusedTensors, AreRefusedByTheirStoredName) {
  const std::string name = "model.layers.1.self_attn.qkv_proj.weight";
  StoredTensors tensors = put_together(DType::kF32);
  const Stored whole = tensors.at(name);
  EXPECT_EQ(whole.header.shape, (std::vector<std::uint64_t>{16, 8}));
  Stored& part = tensors.at(name);
  part.header.shape[0] = 8;  // q alone
  part.bytes.resize(part.bytes.size() / 2);
  write("m", tensors);
  TERRACE_EXPECT_THROW_WITH(open("m", fused_), ConfigError,
                            name + " is [8, 8], but according to config.json it should be [16, 8]");
  tensors.erase(name);
  write("m", tensors);
  TERRACE_EXPECT_THROW_WITH(open("m", fused_), ConfigError, name + " is not in the files");
  TERRACE_EXPECT_THROW_WITH(open("split", fused_), ConfigError,
                            "model.layers.0.self_attn.qkv_proj.weight is not in the files");
}

TEST_F(HfFusedTensors, AreKnownWithoutTheirPrefix) {
  StoredTensors bare;
  for (const auto& [name, stored] : put_together(DType::kF32)) {
    const std::string prefix = "model.";
    const std::string own = name.starts_with(prefix) ? name.substr(prefix.size()) : name;
    bare[own] = stored;
    bare[own].header.name = own;
  }
  Stored& extra = bare["layers.0.self_attn.q_proj.weight"] = bare.at("norm.weight");
  extra.header.name = "layers.0.self_attn.q_proj.weight";
  write("bare", bare);
  const HfDirectory fused = open("bare", fused_);
  ASSERT_EQ(log_.warnings.size(), 1U);
  EXPECT_NE(log_.warnings[0].find("1 tensors are not part of the model and are not used: "
                                  "layers.0.self_attn.q_proj.weight"),
            std::string::npos)
      << log_.warnings[0];
  const UnitLayout block = parameter_layout(fused_)[2];
  const ParameterTensor& up = *block.find(ParameterKind::kUp);
  std::vector<float> wanted(static_cast<std::size_t>(up.elements()));
  kFetchRandom(block, up, 0, wanted);
  std::vector<float> got(wanted.size());
  fused.read(up, 0, got);
  EXPECT_EQ(got, wanted);
}

// A message about a value that a type does not hold gives the name that the file would have.
TEST_F(HfFusedTensors, TellBadValuesByTheirStoredName) {
  const auto fetch = [](const UnitLayout&, const ParameterTensor& tensor, std::int64_t,
                        std::span<float> out) {
    std::ranges::fill(out, tensor.kind == ParameterKind::kUp ? 65536.0F : 1.0F);
  };
  TERRACE_EXPECT_THROW_WITH(
      write_hf_directory({.directory = temporary_.path("m"), .types = {DType::kF16}}, fused_,
                         parameter_layout(fused_), fetch),
      ConfigError, "model.layers.0.mlp.gate_up_proj.weight");
}

}  // namespace
}  // namespace terrace
