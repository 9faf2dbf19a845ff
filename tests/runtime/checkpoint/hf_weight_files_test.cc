#include "runtime/checkpoint/hf_weight_files.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "runtime/checkpoint/hf_companions.h"
#include "runtime/checkpoint/hf_directory.h"
#include "runtime/checkpoint/hf_export.h"
#include "tests/runtime/temporary_directory.h"

// Model directories that are not what they seem to be.
namespace terrace {
namespace {

namespace fs = std::filesystem;

class KeptLog final : public Log {
 public:
  void info(std::string_view line) override { infos.emplace_back(line); }
  void warning(std::string_view line) override { warnings.emplace_back(line); }

  std::vector<std::string> infos;
  std::vector<std::string> warnings;
};

struct NotLoadable {
  const char* what;
  std::string file;
  const char* remedy;
};

class FilesLikeWeights : public testing::TestWithParam<NotLoadable> {};

TEST_P(FilesLikeWeights, AreNamedWithARemedy) {
  const TemporaryDirectory temporary;
  temporary.write("config.json", "{}");
  temporary.write("tokenizer.json", "{}");
  temporary.write("training_args.bin", "x");
  EXPECT_FALSE(has_files_like_weights(temporary.path()));
  temporary.write(GetParam().file, "x");
  EXPECT_FALSE(has_hf_weights(temporary.path()));
  EXPECT_TRUE(has_files_like_weights(temporary.path()));
  const ConfigError error = no_hf_weights(temporary.path(), "start anew");
  EXPECT_NE(std::string(error.what()).find(GetParam().file), std::string::npos) << error.what();
  EXPECT_EQ(std::string(error.what()).find("training_args"), std::string::npos) << error.what();
  EXPECT_NE(error.remedy().find(GetParam().remedy), std::string::npos) << error.remedy();
  EXPECT_TRUE(error.remedy().ends_with("or start anew")) << error.remedy();
}

INSTANTIATE_TEST_SUITE_P(
    Each, FilesLikeWeights,
    testing::Values(
        NotLoadable{"shard", "model-00001-of-00002.safetensors", "model.safetensors.index.json"},
        NotLoadable{"variant", "model.fp16.safetensors", "name it model.safetensors"},
        NotLoadable{"variants_index", "model.safetensors.index.fp16.json", "download"},
        NotLoadable{"interrupted", "model.safetensors.incomplete", "interrupted"},
        NotLoadable{"browser", "model.safetensors.crdownload", "interrupted"},
        NotLoadable{"consolidated", "consolidated.00.pth", "transformers' form"},
        NotLoadable{"pickled", "pytorch_model-00001-of-00002.bin", "save_pretrained"},
        NotLoadable{"tensorflow", "tf_model.h5", "from_tf"},
        NotLoadable{"flax", "flax_model.msgpack", "from_flax"},
        NotLoadable{"gguf", "llama-q4.GGUF", "made from"},
        NotLoadable{"adapter", "adapter_model.safetensors", "adapter was made for"},
        NotLoadable{"in_a_folder", "checkpoint-500/model.safetensors", "name that directory"}),
    [](const auto& each) { return std::string(each.param.what); });

TEST(FilesLikeWeights, OfADirectoryWithoutAnyAreNone) {
  const TemporaryDirectory temporary;
  temporary.write("config.json", "{}");
  const ConfigError error = no_hf_weights(temporary.path(), "start anew");
  EXPECT_NE(std::string(error.what()).find("no weights"), std::string::npos);
  EXPECT_EQ(error.remedy(), "start anew");
}

TEST(FilesLikeWeights, LinksThatLeadNowhereAreToldWithTheirTargets) {
  const TemporaryDirectory temporary;
  fs::create_symlink("../../blobs/gone", temporary.path("model.safetensors"));
  EXPECT_FALSE(has_hf_weights(temporary.path()));
  const ConfigError error = no_hf_weights(temporary.path(), "start anew");
  EXPECT_NE(std::string(error.what()).find("../../blobs/gone"), std::string::npos) << error.what();
}

TEST(FilesLikeWeights, ADirectoryOfThatNameIsNotTheFile) {
  const TemporaryDirectory temporary;
  fs::create_directory(temporary.path("model.safetensors"));
  EXPECT_FALSE(has_hf_weights(temporary.path()));
}

ModelConfig tiny_config() {
  return parse_model_config(R"({"model_type": "llama", "hidden_size": 64, "intermediate_size": 96,
    "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 1024,
    "max_position_embeddings": 8, "tie_word_embeddings": true})",
                            "config.json");
}

// A directory with model.safetensors beside an index with its shards.
class BothForms : public testing::Test {
 protected:
  BothForms() {
    save("m", 5'000'000'000, -1);
    save("shards", 100'000, -1);
    take_shards();
  }

  // Writes a directory in which all parameters are 1, except the element of the embedding with
  // index `odd`.
  void save(const std::string& name, std::uint64_t shard_bytes, std::int64_t odd) const {
    write_hf_directory({.directory = temporary_.path(name),
                        .types = {DType::kF32},
                        .max_shard_bytes = shard_bytes},
                       config_, parameter_layout(config_),
                       [odd](const UnitLayout&, const ParameterTensor& tensor, std::int64_t begin,
                             std::span<float> out) {
                         std::fill(out.begin(), out.end(), 1.0F);
                         const std::int64_t at = odd - begin;
                         if (tensor.name != "model.embed_tokens.weight" || odd < 0 || at < 0)
                           return;
                         if (at < static_cast<std::int64_t>(out.size()))
                           out[static_cast<std::size_t>(at)] = 2;
                       });
  }

  void take_shards() const {
    for (const auto& entry : fs::directory_iterator(temporary_.path("shards"))) {
      const std::string name = entry.path().filename().string();
      if (name == "config.json") continue;
      fs::copy_file(entry.path(), temporary_.path("m/" + name),
                    fs::copy_options::overwrite_existing);
    }
  }

  // Returns the second of the files that the index names.
  std::string second_shard() const {
    for (const auto& entry : fs::directory_iterator(temporary_.path("m"))) {
      if (entry.path().filename().string().starts_with("model-00002-of-")) return entry.path();
    }
    ADD_FAILURE() << "there is no second shard";
    return "";
  }

  void open() {
    const HfDirectory directory(temporary_.path("m"), config_, parameter_layout(config_), log_);
  }

  const TemporaryDirectory temporary_;
  const ModelConfig config_ = tiny_config();
  KeptLog log_;
};

TEST_F(BothForms, ThatAgreeAreTheSingleFile) {
  open();
  ASSERT_EQ(log_.infos.size(), 1U);
  EXPECT_NE(log_.infos[0].find("model.safetensors is used"), std::string::npos) << log_.infos[0];
}

// An index whose files are gone contradicts nothing.
TEST_F(BothForms, WithoutTheIndexedFilesAreTheSingleFile) {
  fs::remove(second_shard());
  open();
}

// The tensors are compared in samples of 64 KiB. The embedding has 256 KiB.
TEST_F(BothForms, ThatDifferAtAnEndOrInTheMiddleAreRefused) {
  constexpr std::int64_t kElements = 1024 * 64;
  for (const std::int64_t odd : {std::int64_t{0}, kElements / 2, kElements - 1}) {
    save("shards", 100'000, odd);
    take_shards();
    TERRACE_EXPECT_THROW_WITH(open(), ConfigError, "model.embed_tokens.weight differs");
  }
}

TEST_F(BothForms, WithOtherTensorsAreRefused) {
  const std::string path = "m/model.safetensors.index.json";
  nlohmann::json index = nlohmann::json::parse(temporary_.read(path));
  const std::string file = index["weight_map"]["model.norm.weight"];
  index["weight_map"].erase("model.norm.weight");
  temporary_.write(path, index.dump());
  TERRACE_EXPECT_THROW_WITH(open(), ConfigError, "does not have tensor model.norm.weight");
  index["weight_map"]["model.norm.weight"] = file;
  index["weight_map"]["lm_head.weight"] = file;
  temporary_.write(path, index.dump());
  TERRACE_EXPECT_THROW_WITH(open(), ConfigError, "lm_head.weight is only in the index");
}

TEST_F(BothForms, WithAFileThatIsCutShortAreRefused) {
  fs::resize_file(second_shard(), 100);
  TERRACE_EXPECT_THROW_WITH(open(), ConfigError, "belong to two models");
}

TEST_F(BothForms, WithALinkToNothingInPlaceOfTheSingleFileAreRefused) {
  fs::remove(temporary_.path("m/model.safetensors"));
  open();
  fs::create_symlink("gone", temporary_.path("m/model.safetensors"));
  TERRACE_EXPECT_THROW_WITH(open(), ConfigError, "remove the link");
}

TEST_F(BothForms, WithAGitLfsPointerSayHowToFetchTheFile) {
  temporary_.write("m/model.safetensors",
                   "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n");
  TERRACE_EXPECT_THROW_WITH(open(), ConfigError, "git lfs pull");
}

std::vector<std::string> names_of(const std::vector<HfCompanion>& companions) {
  std::vector<std::string> names;
  for (const HfCompanion& companion : companions) names.push_back(companion.name);
  return names;
}

TEST(HfCompanions, AreTheFilesThatGoWithAModel) {
  const TemporaryDirectory temporary;
  for (const char* name : {"config.json",
                           "LICENSE",
                           "USE_POLICY.md",
                           "README.md",
                           "tokenizer.json",
                           "tokenizer_config.json",
                           "tokenizer.model",
                           "merges.txt",
                           "generation_config.json",
                           "chat_template.jinja",
                           "additional_chat_templates/tool.jinja",
                           "modeling_own.py",
                           "model.safetensors",
                           "model.safetensors.index.json",
                           "pytorch_model.bin",
                           "trainer_state.json",
                           "training_args.bin",
                           ".gitattributes",
                           ".cache/LICENSE",
                           "onnx/model.onnx",
                           "notes.json"}) {
    temporary.write(name, name);
  }
  KeptLog log;
  using Names = std::vector<std::string>;
  const auto all = read_hf_companions(temporary.path(), CompanionScope::kAll, log);
  EXPECT_EQ(names_of(all), (Names{"LICENSE", "README.md", "USE_POLICY.md", "chat_template.jinja",
                                  "generation_config.json", "merges.txt", "modeling_own.py",
                                  "tokenizer.json", "tokenizer.model", "tokenizer_config.json",
                                  "additional_chat_templates/tool.jinja"}));
  for (const HfCompanion& companion : all) EXPECT_EQ(companion.content, companion.name);
  EXPECT_EQ(names_of(read_hf_companions(temporary.path(), CompanionScope::kWithoutTokenizer, log)),
            (Names{"LICENSE", "README.md", "USE_POLICY.md", "modeling_own.py"}));
  EXPECT_EQ(
      names_of(read_hf_companions(temporary.path(), CompanionScope::kTokenizer, log)),
      (Names{"chat_template.jinja", "generation_config.json", "merges.txt", "tokenizer.json",
             "tokenizer.model", "tokenizer_config.json", "additional_chat_templates/tool.jinja"}));
  EXPECT_TRUE(log.warnings.empty());
}

TEST(HfCompanions, OfUnlikelySizeAndLinksToNothingAreToldAndLeftOut) {
  const TemporaryDirectory temporary;
  temporary.write("config.json", "{}");
  temporary.write("tokenizer.json", "");
  fs::resize_file(temporary.path("tokenizer.json"), std::uintmax_t{65} << 20);  // no blocks
  fs::create_symlink("gone", temporary.path("LICENSE"));
  KeptLog log;
  EXPECT_TRUE(read_hf_companions(temporary.path(), CompanionScope::kAll, log).empty());
  ASSERT_EQ(log.warnings.size(), 2U);
  EXPECT_NE(log.warnings[0].find("LICENSE"), std::string::npos);
  EXPECT_NE(log.warnings[1].find("tokenizer.json is larger than 64"), std::string::npos)
      << log.warnings[1];
}

}  // namespace
}  // namespace terrace
