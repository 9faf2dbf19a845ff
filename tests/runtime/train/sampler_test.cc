#include "runtime/train/sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "memory/host/host_limits.h"
#include "runtime/checkpoint/hf_export.h"
#include "runtime/tokenizer/tokenizer.h"
#include "runtime/train/token_sampler.h"
#include "tests/runtime/temporary_directory.h"
#include "tests/runtime/train/sampled_models.h"

namespace terrace {
namespace {

using testing::HasSubstr;
using testing::Not;

// Collects the warnings of a run.
class WarningLog final : public Log {
 public:
  void info(std::string_view) override {}
  void warning(std::string_view line) override { warnings_ += std::string(line) + "\n"; }
  const std::string& warnings() const { return warnings_; }

 private:
  std::string warnings_;
};

std::string text_of(const SampleOptions& options, Log& log) {
  std::string text;
  sample_text(options, [&](std::string_view piece) { text += piece; }, log);
  return text;
}

std::string text_of(const SampleOptions& options) {
  SilentLog log;
  return text_of(options, log);
}

// A directory with a small model, and the options to sample from it. Each token is one byte.
class SampledDirectory {
 public:
  explicit SampledDirectory(const ModelConfig& config) {
    write_hf_directory({directory_.path("final"), DType::kF32}, config, parameter_layout(config),
                       kFetchInitial);
    options.source.directory = directory_.path("final");
    options.prompt = "The ";
    options.choice.temperature = 0;
    options.threads = 1;
  }
  const TemporaryDirectory& directory() const { return directory_; }

  SampleOptions options;

 private:
  TemporaryDirectory directory_;
};

TEST(SampleText, ContinuesFromAHuggingFaceDirectory) {
  const TemporaryDirectory directory;
  const ModelConfig config = small_model(false);
  write_hf_directory({directory.path("final"), DType::kF32}, config, parameter_layout(config),
                     kFetchInitial);
  SampleOptions options;
  options.source.directory = directory.path("final");
  options.prompt = "The ";
  options.max_new_tokens = 90;  // more than the model's 64 positions
  options.threads = 1;
  const std::string text = text_of(options);
  EXPECT_EQ(text.size(), 4U + 90U);
  EXPECT_EQ(text.substr(0, 4), "The ");
  options.threads = 2;
  EXPECT_EQ(text_of(options), text);
  options.seed = 99;
  EXPECT_NE(text_of(options), text);
  options.choice.temperature = 0;
  const std::string greedy = text_of(options);
  options.seed = 100;
  EXPECT_EQ(text_of(options), greedy);
}

// Dynamic rotary embeddings use the length of the whole text, even if it exceeds
// max_position_embeddings.
TEST(SampleText, GoesOnWithDynamicRotaryEmbeddings) {
  const TemporaryDirectory directory;
  const ModelConfig config = rotated_model(kDynamic);
  write_hf_directory({directory.path("final"), DType::kF32}, config, parameter_layout(config),
                     kFetchInitial);
  SampleOptions options;
  options.source.directory = directory.path("final");
  options.prompt = "A prompt of more than 8 bytes";
  options.max_new_tokens = 4;
  options.choice.temperature = 0;
  options.threads = 1;
  std::string wanted = options.prompt;
  for (int i = 0; i < 4; ++i) {
    TokenSampler exact({config, DType::kF32, static_cast<std::int64_t>(wanted.size()), 1},
                       kFetchInitial);
    std::vector<std::int32_t> ids;
    make_bytes_tokenizer()->encode(wanted, ids);
    wanted += static_cast<char>(choose_id(exact.logits_after(ids), {.temperature = 0}, {}));
  }
  EXPECT_EQ(text_of(options), wanted);
}

// If the directory of a model, here one with 300 ids, has a tokenizer, the model samples with the
// tokens of that tokenizer.
TEST(SampleText, TakesTheTokenizerOfTheDirectory) {
  const TemporaryDirectory directory;
  const ModelConfig config = small_model(true);
  write_hf_directory({directory.path("final"), DType::kF32}, config, parameter_layout(config),
                     kFetchInitial);
  SampleOptions options;
  options.source.directory = directory.path("final");
  options.prompt = "ab c";
  options.max_new_tokens = 20;
  options.threads = 1;
  const auto sampled = [&] {
    SilentLog log;
    std::string text;
    sample_text(options, [&](std::string_view piece) { text += piece; }, log);
    return text;
  };
  const std::string of_bytes = sampled();
  const std::string tokenizer = directory.write("final/tokenizer.json", R"({
    "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
    "pre_tokenizer": null, "post_processor": null,
    "decoder": {"type": "Replace", "pattern": {"String": "_"}, "content": " "},
    "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "c": 2, "_": 3, "ab": 4},
              "merges": ["a b"]}})");
  const std::string of_tokens = sampled();
  EXPECT_EQ(of_tokens.substr(0, 4), "ab c");
  EXPECT_EQ(of_tokens.find_first_not_of("abc "), std::string::npos) << of_tokens;
  EXPECT_NE(of_tokens, of_bytes);
  options.source.tokenizer = "bytes";
  EXPECT_EQ(sampled(), of_bytes);
  options.source.tokenizer = tokenizer;
  EXPECT_EQ(sampled(), of_tokens);
  // The text ends where the model draws the end token.
  directory.write("final/tokenizer_config.json", R"({"eos_token": "ab"})");
  const std::string ended = sampled();
  EXPECT_EQ(of_tokens.substr(0, ended.size()), ended);
  EXPECT_EQ(ended.find("ab", 1), std::string::npos);
  EXPECT_LT(ended.size(), of_tokens.size());
  // The model's files may name further ones.
  directory.write("final/generation_config.json", R"({"eos_token_id": [4, 0, 1, 2, 3]})");
  EXPECT_EQ(sampled(), "ab c");
  // The tokenizer's own end token counts beside them.
  directory.write("final/generation_config.json", R"({"eos_token_id": [0, 1, 2, 3]})");
  EXPECT_EQ(sampled(), "ab c");
  directory.write("final/tokenizer_config.json", R"({"eos_token": null})");
  EXPECT_EQ(sampled(), of_tokens);
}

TEST(SampleText, TellsHowItEnded) {
  SampledDirectory sampled(small_model(false));
  SilentLog log;
  const auto outcome = sample_text(sampled.options, [](std::string_view) {}, log);
  EXPECT_EQ(outcome.end, SampleEnd::kLength);
  EXPECT_EQ(outcome.prompt_tokens, 4);
  EXPECT_EQ(outcome.new_tokens, 200);
  EXPECT_EQ(name_of(outcome.end), "length");
}

TEST(SampleText, EndsBeforeAStopText) {
  SampledDirectory sampled(small_model(false));
  SampleOptions& options = sampled.options;
  options.choice.temperature = 1;
  options.max_new_tokens = 60;
  const std::string whole = text_of(options);
  // The stop text is three tokens long. Sampling stops at the first place where they occur.
  const std::string stop = whole.substr(40, 3);
  options.stop_texts = {"never there, as it is too long to be drawn", stop};
  SilentLog log;
  std::string text;
  const auto outcome = sample_text(options, [&](std::string_view piece) { text += piece; }, log);
  EXPECT_EQ(outcome.end, SampleEnd::kStopText);
  EXPECT_EQ(text, whole.substr(0, whole.find(stop, options.prompt.size())));
}

// gpt2 has no positions beyond those that it has learned. Here these are 64.
TEST(SampleText, EndsWithTheLearnedPositions) {
  SampledDirectory sampled(small_model(true));
  SampleOptions& options = sampled.options;
  options.prompt = std::string(60, 'a');
  WarningLog log;
  const auto outcome = sample_text(options, [](std::string_view) {}, log);
  EXPECT_EQ(outcome.end, SampleEnd::kPositions);
  EXPECT_EQ(outcome.new_tokens, 5);  // the last one comes after the last position
  EXPECT_THAT(log.warnings(), HasSubstr("has learned only 64 positions"));
  options.max_new_tokens = 5;
  WarningLog quiet;
  EXPECT_EQ(sample_text(options, [](std::string_view) {}, quiet).end, SampleEnd::kLength);
  EXPECT_THAT(quiet.warnings(), Not(HasSubstr("positions")));
  options.prompt = std::string(64, 'a');
  options.max_new_tokens = 1;
  EXPECT_EQ(text_of(options).size(), 65U);
  options.prompt += "a";
  TERRACE_EXPECT_THROW_WITH(text_of(options), ConfigError, "the prompt has 65 tokens");
}

TEST(SampleText, GoesOnBehindThePositionsOfARotaryModel) {
  SampledDirectory sampled(small_model(false));
  sampled.options.max_new_tokens = 61;  // the last one comes after the 64 positions
  WarningLog quiet;
  EXPECT_EQ(text_of(sampled.options, quiet).size(), 65U);
  EXPECT_EQ(quiet.warnings(), "");
  sampled.options.max_new_tokens = 62;
  WarningLog log;
  EXPECT_EQ(text_of(sampled.options, log).size(), 66U);
  EXPECT_THAT(log.warnings(), HasSubstr("was made for 64 (max_position_embeddings)"));
}

TEST(SampleText, KeysAndValuesThatDoNotFitAreRefused) {
  ModelConfig config = small_model(false);
  SampledDirectory sampled(config);
  const std::size_t usable = read_host_limits().usable_bytes();
  // There are 2 layers with keys and values, 16 wide, in fp32, so memory has room for only half as
  // many tokens.
  sampled.options.max_new_tokens = static_cast<std::int64_t>(usable / (2 * 2 * 16 * 4)) * 2;
  TERRACE_EXPECT_THROW_WITH(text_of(sampled.options), OutOfMemory, "--max-new-tokens ");
}

TEST(SampleText, TokenizersWithMoreIdsThanTheModelAreRefused) {
  const TemporaryDirectory directory;
  const ModelConfig config = small_model(true);
  write_hf_directory({directory.path("final"), DType::kF32}, config, parameter_layout(config),
                     kFetchInitial);
  directory.write("final/tokenizer.json", R"({
    "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
    "pre_tokenizer": null, "post_processor": null, "decoder": null,
    "model": {"type": "BPE", "vocab": {"a": 300}, "merges": []}})");
  SampleOptions options;
  options.source.directory = directory.path("final");
  options.prompt = "a";
  TERRACE_EXPECT_THROW_WITH(text_of(options), ConfigError,
                            "the tokenizer has 301 ids, but the model's vocabulary has only 300");
}

TEST(SampleText, DirectoriesWithoutWeightsAreRefused) {
  const TemporaryDirectory directory;
  SampleOptions options;
  options.prompt = "x";
  options.source.directory = directory.path("none");
  TERRACE_EXPECT_THROW_WITH(text_of(options), ConfigError, "there is no such directory");
  options.source.directory = "nano";
  TERRACE_EXPECT_THROW_WITH(text_of(options), ConfigError, "not a directory");
  directory.write("bare/config.json", small_model(false).json);
  options.source.directory = directory.path("bare");
  TERRACE_EXPECT_THROW_WITH(text_of(options), ConfigError, "safetensors");
  directory.write("run/final/config.json", small_model(false).json);
  options.source.directory = directory.path("run");
  TERRACE_EXPECT_THROW_WITH(text_of(options), ConfigError, "run/final");
}

}  // namespace
}  // namespace terrace
