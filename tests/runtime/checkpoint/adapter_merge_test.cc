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
#include "runtime/model/adapter_targets.h"
#include "tests/runtime/checkpoint/hf_fixture.h"
#include "tests/runtime/model/small_models.h"
#include "tests/runtime/temporary_directory.h"

// terrace merge adds adapters to their matrices, and leaves everything else as it was.
namespace terrace {
namespace {

constexpr std::int64_t kMergedRank = 4;

// Returns a model whose sizes are no multiple of anything, so that rows do not end where pieces do.
ModelConfig model_to_merge(std::string_view family, const std::string& json_more = "") {
  return parse_model_config(
      small_config_json(family, {.width = 32, .head_width = 8, .intermediate = 56}) + json_more,
      "small");
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
