#include "runtime/train/adapter_merge.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cmath>
#include <csignal>
#include <filesystem>

#include "base/error.h"
#include "runtime/checkpoint/adapter_directory.h"
#include "runtime/checkpoint/hf_directory.h"
#include "runtime/checkpoint/hf_weight_files.h"
#include "runtime/model/adapter_modules.h"
#include "runtime/model/adapter_targets.h"
#include "tests/runtime/checkpoint/hf_fixture.h"
#include "tests/runtime/model/small_models.h"
#include "tests/runtime/temporary_directory.h"

// terrace merge adds adapters to their matrices, and leaves everything else as it was.
namespace terrace {
namespace {

constexpr std::int64_t kMergedRank = 4;

// Returns a model whose sizes are no multiple of anything, so that rows do not end where pieces do.
ModelConfig model_to_merge(std::string_view family, bool tied = false) {
  return small_model(family, {.width = 32, .head_width = 8, .intermediate = 56, .tied = tied});
}

struct MergeCase {
  const char* name;
  const char* family;
  DType type;
  std::vector<std::string> patterns;
  std::uint64_t max_shard_bytes;
};

void PrintTo(const MergeCase& merge, std::ostream* stream) { *stream << merge.name; }

class Merge : public testing::TestWithParam<MergeCase> {
 protected:
  Merge() : base_(model_to_merge(GetParam().family)) {
    adapted_ =
        with_adapter(base_, {.rank = kMergedRank, .alpha = 6, .targets = {}}, GetParam().patterns);
    write_hf_directory({.directory = files_.path("base"),
                        .types = {.usual = GetParam().type},
                        .max_shard_bytes = GetParam().max_shard_bytes},
                       base_, parameter_layout(base_), kFetchRandom);
    files_.write("base/LICENSE", "free");
    files_.write("base/notes.txt", "of nobody");
    write_adapter_directory({.directory = files_.path("adapter"), .base_model = "base"}, adapted_,
                            parameter_layout(adapted_), kFetchRandom);
  }

  void merge() {
    SilentConsole console;
    SilentLog log;
    merge_adapter({files_.path("base"), files_.path("adapter"), files_.path("merged")}, console,
                  log);
  }
  std::vector<std::string> weight_files() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(files_.path("base"))) {
      const std::string name = entry.path().filename().string();
      if (name.ends_with(".safetensors")) names.push_back(name);
    }
    return names;
  }

  TemporaryDirectory files_;
  ModelConfig base_;
  ModelConfig adapted_;
};

std::vector<float> values_in(const HfDirectory& directory, const ParameterTensor& tensor) {
  std::vector<float> values(static_cast<std::size_t>(tensor.elements()));
  directory.read(tensor, 0, values);
  return values;
}

std::vector<float> values_of_adapter(const ParameterTensor& tensor) {
  std::vector<float> values(static_cast<std::size_t>(tensor.elements()));
  kFetchRandom(UnitLayout(), tensor, 0, values);
  return values;
}

// Returns the A that a weight shares with the weights that are stored with it.
const ParameterTensor* a_of_weight(const UnitLayout& unit, const ParameterTensor& weight) {
  for (const ParameterTensor& other : unit.tensors) {
    if (other.stored_name == weight.stored_name) return unit.find(adapter_a(other.kind));
  }
  return nullptr;
}

TEST_P(Merge, AddsTheProductToWhatItIsOf) {
  merge();
  SilentLog log;
  const std::vector<UnitLayout> layout = parameter_layout(adapted_);
  const HfDirectory before(files_.path("base"), base_, layout, log);
  const HfDirectory after(files_.path("merged"), base_, layout, log);
  EXPECT_EQ(after.types(), before.types());
  int merged = 0;
  for (const UnitLayout& unit : layout) {
    for (const ParameterTensor& tensor : unit.tensors) {
      if (is_adapter(tensor.kind)) continue;
      const std::vector<float> was = values_in(before, tensor);
      const std::vector<float> is = values_in(after, tensor);
      const ParameterTensor* const up =
          is_layer_weight(tensor.kind) ? unit.find(adapter_b(tensor.kind)) : nullptr;
      if (up == nullptr) {
        EXPECT_EQ(is, was) << tensor.name;
        continue;
      }
      ++merged;
      const std::vector<float> a = values_of_adapter(*a_of_weight(unit, tensor));
      const std::vector<float> b = values_of_adapter(*up);
      for (std::int64_t i = 0; i < tensor.elements(); ++i) {
        double sum = 0;
        double size = std::abs(was[i]);
        for (std::int64_t k = 0; k < kMergedRank; ++k) {
          const double product = static_cast<double>(b[i / tensor.columns * kMergedRank + k]) *
                                 a[k * tensor.columns + i % tensor.columns];
          sum += product;
          size += 1.5 * std::abs(product);
        }
        const double wanted = was[i] + 1.5 * sum;
        // Allows six roundings of fp32, and one to the type.
        const double unit_of_type = GetParam().type == DType::kBF16  ? 0x1p-8
                                    : GetParam().type == DType::kF16 ? 0x1p-11
                                                                     : 0x1p-24;
        EXPECT_NEAR(is[i], wanted, 6 * 0x1p-24 * size + unit_of_type * std::abs(wanted))
            << tensor.name;
      }
    }
  }
  EXPECT_GT(merged, 0);
}

TEST_P(Merge, LeavesAllElseAsItIs) {
  merge();
  EXPECT_EQ(files_.read("merged/config.json"), files_.read("base/config.json"));
  EXPECT_EQ(files_.read("merged/LICENSE"), "free");
  EXPECT_FALSE(files_.has("merged/notes.txt"));
  EXPECT_EQ(files_.has("merged/model.safetensors.index.json"),
            GetParam().max_shard_bytes < 1'000'000);
  for (const std::string& name : weight_files()) {
    const SafetensorsFile before(files_.path("base/" + name));
    const SafetensorsFile after(files_.path("merged/" + name));
    ASSERT_EQ(after.header().tensors.size(), before.header().tensors.size());
    for (std::size_t i = 0; i < before.header().tensors.size(); ++i) {
      const SafetensorsTensor& was = before.header().tensors[i];
      const SafetensorsTensor& is = after.header().tensors[i];
      EXPECT_EQ(is.name, was.name);
      EXPECT_EQ(is.type, was.type);
      EXPECT_EQ(is.shape, was.shape);
      std::vector<std::byte> old_bytes(was.size_bytes());
      std::vector<std::byte> bytes(is.size_bytes());
      before.read(was, 0, old_bytes);
      after.read(is, 0, bytes);
      EXPECT_EQ(bytes != old_bytes, adapted_.adapter.has_target(was.name)) << was.name;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Cases, Merge,
    testing::Values(
        MergeCase{"llama", "llama", DType::kF32, {}, 5'000'000},
        MergeCase{"llama_bf16_shards", "llama", DType::kBF16, {"q_proj", "down_proj"}, 40'000},
        MergeCase{"gpt2_fp16", "gpt2", DType::kF16, {}, 5'000'000},
        MergeCase{"phi3_bf16", "phi3", DType::kBF16, {}, 5'000'000}),
    [](const auto& info) { return info.param.name; });

// Tensors of whole modules are the adapter's, in the type of the base's file. A tied head that is
// in the files is one of them.
TEST(MergeOfWholeModules, ReplacesTheirTensors) {
  for (const auto& [family, type, patterns] :
       {std::tuple{"llama", DType::kBF16,
                   std::vector<std::string>{"lm_head.weight", "*.1.mlp.up_proj.*"}},
        {"gpt2", DType::kF32, {"*.0.mlp.c_fc.*", "ln_f.*"}},
        {"phi3", DType::kF16, {"*.0.self_attn.qkv_proj.weight"}}}) {
    const TemporaryDirectory files;
    SilentConsole console;
    SilentLog log;
    const ModelConfig base = model_to_merge(family);
    AdapterOptions adapter = {.rank = 2, .alpha = 3, .targets = {}};
    adapter.whole_modules = modules_that_match(base, patterns);
    const ModelConfig adapted = with_adapter(base, adapter, {});
    const std::vector<UnitLayout> layout = parameter_layout(adapted);
    const auto zeros = [](const UnitLayout&, const ParameterTensor&, std::int64_t,
                          std::span<float> out) { std::ranges::fill(out, 0.0F); };
    write_hf_directory({.directory = files.path("base"), .types = {.usual = type}}, base,
                       parameter_layout(base), zeros);
    write_adapter_directory({.directory = files.path("adapter"), .base_model = "base"}, adapted,
                            layout, kFetchRandom);
    merge_adapter({files.path("base"), files.path("adapter"), files.path("merged")}, console, log);
    const HfDirectory after(files.path("merged"), base, parameter_layout(base), log);
    int replaced = 0;
    for (const UnitLayout& unit : layout) {
      for (const ParameterTensor& tensor : unit.tensors) {
        if (is_adapter(tensor.kind) || !tensor.trainable) continue;
        ++replaced;
        std::vector<float> wanted = values_of_adapter(tensor);
        for (float& value : wanted) {
          if (type == DType::kBF16) value = to_float(to_parameter<Bf16>(value));
          if (type == DType::kF16) value = to_float(to_parameter<Fp16>(value));
        }
        EXPECT_EQ(values_in(after, tensor), wanted) << tensor.name;
      }
    }
    EXPECT_GE(replaced, 2);
    EXPECT_NE(values_in(after, *layout[2].find(ParameterKind::kDown)).front(), 0.0F);
  }
}

TEST(MergeOfWholeModules, ReplacesATiedHeadToo) {
  const TemporaryDirectory files;
  SilentConsole console;
  SilentLog log;
  const ModelConfig base = model_to_merge("llama", true);
  AdapterOptions adapter = {.rank = 2, .alpha = 3, .targets = {}};
  adapter.whole_modules = modules_that_match(base, {"embed_tokens.weight"});
  const ModelConfig adapted = with_adapter(base, adapter, {});
  write_hf_directory({.directory = files.path("base")}, base, parameter_layout(base), kFetchRandom);
  // A file that has the head beside the embedding, as some versions of transformers write it.
  std::vector<UnitLayout> both = parameter_layout(base);
  both.front().tensors.push_back(*both.front().find(ParameterKind::kTokenEmbedding));
  both.front().tensors.back().stored_name = stored_head_name(base);
  write_hf_tensors(files.path("base/model.safetensors"), {.usual = DType::kF32}, both,
                   kFetchRandom);
  const auto halves = [](const UnitLayout&, const ParameterTensor&, std::int64_t,
                         std::span<float> out) { std::ranges::fill(out, 0.5F); };
  write_adapter_directory({.directory = files.path("adapter"), .base_model = "base"}, adapted,
                          parameter_layout(adapted), halves);
  merge_adapter({files.path("base"), files.path("adapter"), files.path("merged")}, console, log);
  const HfDirectory after(files.path("merged"), base, parameter_layout(base), log);
  const std::vector<float> embedding =
      values_in(after, *parameter_layout(base).front().find(ParameterKind::kTokenEmbedding));
  EXPECT_EQ(embedding, std::vector<float>(embedding.size(), 0.5F));
}

TEST(MergeRefusals, NameWhatIsWrong) {
  const TemporaryDirectory files;
  SilentConsole console;
  SilentLog log;
  const ModelConfig base = model_to_merge("llama");
  write_hf_directory({.directory = files.path("base")}, base, parameter_layout(base), kFetchRandom);
  const ModelConfig adapted = with_adapter(base, {.rank = 2, .alpha = 2, .targets = {}}, {});
  write_adapter_directory({.directory = files.path("adapter"), .base_model = "base"}, adapted,
                          parameter_layout(adapted), kFetchRandom);
  const auto merge = [&](const std::string& from, const std::string& adapter,
                         const std::string& to) {
    merge_adapter({files.path(from), files.path(adapter), files.path(to)}, console, log);
  };
  files.write("full/file", "x");
  TERRACE_EXPECT_THROW_WITH(merge("base", "adapter", "full"), ConfigError, "not an empty");
  TERRACE_EXPECT_THROW_WITH(merge("base", "base", "to"), ConfigError, "is not an adapter");
  TERRACE_EXPECT_THROW_WITH(merge("adapter", "adapter", "to"), ConfigError, "config.json");
  EXPECT_FALSE(files.has("to"));
}

// Limits files to this many bytes, like a disk that is full then.
class FullDisk {
 public:
  explicit FullDisk(rlim_t file_bytes) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit small = {.rlim_cur = file_bytes, .rlim_max = before_.rlim_max};
    EXPECT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  }
  ~FullDisk() {
    EXPECT_EQ(::setrlimit(RLIMIT_FSIZE, &before_), 0);
    std::signal(SIGXFSZ, handler_);
  }
  FullDisk(const FullDisk&) = delete;
  FullDisk& operator=(const FullDisk&) = delete;

 private:
  void (*handler_)(int) = std::signal(SIGXFSZ, SIG_IGN);
  rlimit before_ = {};
};

TEST(InterruptedMerge, LeavesNothingOrIsTold) {
  const TemporaryDirectory files;
  SilentConsole console;
  SilentLog log;
  const ModelConfig base = model_to_merge("llama");
  write_hf_directory({.directory = files.path("base"), .max_shard_bytes = 10'000}, base,
                     parameter_layout(base), kFetchRandom);
  const ModelConfig adapted = with_adapter(base, {.rank = 2, .alpha = 2, .targets = {}}, {});
  write_adapter_directory({.directory = files.path("adapter"), .base_model = "base"}, adapted,
                          parameter_layout(adapted), kFetchRandom);
  const auto merge = [&](const std::string& to) {
    merge_adapter({files.path("base"), files.path("adapter"), files.path(to)}, console, log);
  };
  std::filesystem::create_directory(files.path("empty"));
  for (const char* to : {"empty", "new"}) {
    {
      const FullDisk disk(9'000);
      TERRACE_EXPECT_THROW_WITH(merge(to), IoError, ".safetensors");
    }
    EXPECT_EQ(files.has(to), std::string(to) == "empty");
    merge(to);
    EXPECT_TRUE(files.has(std::string(to) + "/config.json"));
    EXPECT_FALSE(files.has(std::string(to) + "/.unfinished-merge"));
  }
  // A process that is killed leaves a directory like this.
  files.write("killed/.unfinished-merge", "");
  files.write("killed/model-00001-of-00002.safetensors", "part");
  TERRACE_EXPECT_THROW_WITH(merge("killed"), ConfigError, "an earlier merge was not finished");
  TERRACE_EXPECT_THROW_WITH(merge("killed"), ConfigError, "rm -r " + files.path("killed"));
}

// 65504 is the largest number of fp16.
TEST(MergeRefusals, NameAValueThatTheTypeDoesNotHold) {
  const TemporaryDirectory files;
  SilentConsole console;
  SilentLog log;
  const ModelConfig base = model_to_merge("llama");
  write_hf_directory({.directory = files.path("base"), .types = {.usual = DType::kF16}}, base,
                     parameter_layout(base), kFetchRandom);
  const ModelConfig adapted =
      with_adapter(base, {.rank = 2, .alpha = 1e6, .targets = {}}, {"k_proj"});
  write_adapter_directory({.directory = files.path("adapter"), .base_model = "base"}, adapted,
                          parameter_layout(adapted), kFetchRandom);
  TERRACE_EXPECT_THROW_WITH(
      merge_adapter({files.path("base"), files.path("adapter"), files.path("to")}, console, log),
      ConfigError, "k_proj.weight would have the value");
  EXPECT_FALSE(files.has("to/config.json"));
}

}  // namespace
}  // namespace terrace
