#include "runtime/train/sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "runtime/model/parameter_init.h"
#include "runtime/tokenizer/tokenizer.h"
#include "tests/runtime/temporary_directory.h"

namespace terrace {
namespace {

constexpr std::uint64_t kSeed = 5;

constexpr auto kFetchInitial = [](const UnitLayout&, const ParameterTensor& tensor,
                                  std::int64_t begin, std::span<float> out) {
  init_parameter(tensor, kSeed, begin, out);
};

// As preset nano, smaller.
ModelConfig small_model(bool gpt2) {
  if (gpt2) {
    return parse_model_config(R"({"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"],
      "n_layer": 2, "n_embd": 32, "n_head": 2, "vocab_size": 300, "n_positions": 64,
      "n_ctx": 64, "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5,
      "torch_dtype": "float32"})",
                              "test");
  }
  return parse_model_config(R"({"model_type": "llama", "architectures": ["LlamaForCausalLM"],
    "num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 2,
    "num_key_value_heads": 1, "intermediate_size": 48, "vocab_size": 256,
    "max_position_embeddings": 64, "hidden_act": "silu", "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0, "tie_word_embeddings": false, "torch_dtype": "bfloat16"})",
                            "test");
}

std::vector<std::int32_t> ids_of(std::string_view text) {
  std::vector<std::int32_t> ids;
  make_bytes_tokenizer()->encode(text, ids);
  return ids;
}

std::vector<float> logits_of(TokenSampler& sampler, std::string_view text) {
  const auto logits = sampler.logits_after(ids_of(text));
  return {logits.begin(), logits.end()};
}

TEST(TokenSampler, LogitsDependOnTheWindowAndNotOnWhatIsBehindIt) {
  for (const bool gpt2 : {false, true}) {
    const ModelConfig config = small_model(gpt2);
    TokenSampler sampler({config, DType::kF32, 16, 2}, kFetchInitial);
    const std::vector<float> first = logits_of(sampler, "hello");
    ASSERT_EQ(first.size(), static_cast<std::size_t>(config.vocabulary));
    EXPECT_NE(logits_of(sampler, "hellp"), first);
    EXPECT_NE(logits_of(sampler, "jello"), first);
    logits_of(sampler, "a longer text, that leaves other tokens in the window");
    EXPECT_EQ(logits_of(sampler, "hello"), first);
    // Only the last 16 ids count.
    EXPECT_EQ(logits_of(sampler, "0123456789abcdef"), logits_of(sampler, "x0123456789abcdef"));
    EXPECT_NE(logits_of(sampler, "0123456789abcdef"), logits_of(sampler, "x123456789abcdef"));
  }
}

TEST(TokenSampler, WindowsOfTwoSizesAgree) {
  const ModelConfig config = small_model(false);
  TokenSampler narrow({config, DType::kF32, 16, 1}, kFetchInitial);
  TokenSampler wide({config, DType::kF32, 64, 2}, kFetchInitial);
  const std::vector<float> a = logits_of(narrow, "some text");
  const std::vector<float> b = logits_of(wide, "some text");
  // The products are cut differently for another number of rows, so sums are in another order.
  for (std::size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i], b[i], 1e-5F) << i;
}

// With weights so large that positions matter.
ModelConfig rotated_model(const std::string& scaling) {
  return parse_model_config(R"({"model_type": "llama", "architectures": ["LlamaForCausalLM"],
    "num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 48,
    "vocab_size": 256, "max_position_embeddings": 8, "initializer_range": 0.3,
    "rope_scaling": )" + scaling +
                                "}",
                            "test");
}

constexpr const char* kDynamic = R"({"rope_type": "dynamic", "factor": 8})";
constexpr const char* kLongRope = R"({"rope_type": "longrope",
    "original_max_position_embeddings": 32, "factor": 4, "short_factor": [1, 2, 3, 4],
    "long_factor": [4, 8, 16, 32]})";

float largest_distance(const std::vector<float>& a, const std::vector<float>& b) {
  float largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) largest = std::max(largest, std::abs(a[i] - b[i]));
  return largest;
}

// Angles that depend on the length of the sequence have the text's.
TEST(TokenSampler, TurnsByTheLengthOfTheText) {
  for (const char* scaling : {kDynamic, kLongRope}) {
    const ModelConfig config = rotated_model(scaling);
    TokenSampler::Shape shape = {config, DType::kF32, 64, 1};
    TokenSampler of_window(shape, kFetchInitial);
    shape.rope_of_text = true;
    TokenSampler of_text(shape, kFetchInitial);
    for (const std::string text :
         {"a text of 23 characters", "and this one is a little longer, 40 long"}) {
      TokenSampler exact({config, DType::kF32, static_cast<std::int64_t>(text.size()), 1},
                         kFetchInitial);
      const std::vector<float> wanted = logits_of(exact, text);
      EXPECT_LT(largest_distance(logits_of(of_text, text), wanted), 1e-4F) << scaling << text;
      // Both are long for longrope.
      const bool is_same = scaling == kLongRope && text.size() > 32;
      EXPECT_EQ(largest_distance(logits_of(of_window, text), wanted) > 1e-2F, !is_same)
          << scaling << text;
    }
  }
}

TEST(TokenSampler, MemoryGrowsWithTheWindow) {
  const ModelConfig config = small_model(false);
  EXPECT_LT(TokenSampler::memory_bytes({config, DType::kBF16, 16, 1}),
            TokenSampler::memory_bytes({config, DType::kBF16, 64, 1}));
  const auto parameters = static_cast<std::size_t>(parameter_count(parameter_layout(config)));
  EXPECT_LT(parameters * sizeof(float), TokenSampler::memory_bytes({config, DType::kF32, 16, 1}));
}

TEST(ChooseId, TemperatureZeroTakesTheLikeliest) {
  std::array<float, 300> logits = {};
  logits[65] = 2.0F;
  logits[270] = 9.0F;
  EXPECT_EQ(choose_id(logits, 0, 1, 0), 270);
  EXPECT_EQ(choose_id(std::span(logits).first(256), 0, 1, 0), 65);
}

TEST(ChooseId, DrawsByLikelihood) {
  std::array<float, 300> logits;
  logits.fill(-1000.0F);
  logits[10] = 0.0F;
  logits[20] = std::log(3.0F);
  std::array<int, 300> counts = {};
  constexpr int kDraws = 4000;
  for (std::uint64_t i = 0; i < kDraws; ++i)
    ++counts[static_cast<std::size_t>(choose_id(logits, 1.0, kSeed, i))];
  EXPECT_EQ(counts[10] + counts[20], kDraws);
  // 3/4 of 4000 with a deviation of 27; the draws of a seed are always the same.
  EXPECT_NEAR(counts[20], 3000, 110);
  EXPECT_EQ(choose_id(logits, 1.0, kSeed, 3), choose_id(logits, 1.0, kSeed, 3));
}

TEST(ChooseId, LogitsThatAreNoNumbersAreRefused) {
  std::array<float, 256> logits = {};
  logits[7] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_THROW(choose_id(logits, 1.0, 1, 0), NotFinite);
  EXPECT_THROW(choose_id(logits, 0.0, 1, 0), NotFinite);
}

// All that is written, in as many pieces as it has bytes after the prompt.
std::string text_of(const SampleOptions& options) {
  SilentLog log;
  std::string text;
  std::int64_t pieces = 0;
  const auto write = [&](std::string_view piece) {
    EXPECT_EQ(piece.size(), pieces == 0 ? options.prompt.size() : 1);
    ++pieces;
    text += piece;
  };
  sample_text(options, write, log);
  EXPECT_EQ(pieces, 1 + options.max_new_tokens);
  return text;
}

TEST(SampleText, ContinuesFromAHuggingFaceDirectory) {
  const TemporaryDirectory directory;
  const ModelConfig config = small_model(false);
  write_hf_directory({directory.path("final"), DType::kF32}, config, parameter_layout(config),
                     kFetchInitial);
  SampleOptions options;
  options.model_directory = directory.path("final");
  options.prompt = "The ";
  options.max_new_tokens = 90;  // past the model's 64 positions
  options.threads = 1;
  const std::string text = text_of(options);
  EXPECT_EQ(text.size(), 4U + 90U);
  EXPECT_EQ(text.substr(0, 4), "The ");
  options.threads = 2;
  EXPECT_EQ(text_of(options), text);
  options.seed = 99;
  EXPECT_NE(text_of(options), text);
  options.temperature = 0;
  const std::string greedy = text_of(options);
  options.seed = 100;
  EXPECT_EQ(text_of(options), greedy);
}

// Dynamic rotary embeddings see the whole text, also past max_position_embeddings.
TEST(SampleText, GoesOnWithDynamicRotaryEmbeddings) {
  const TemporaryDirectory directory;
  const ModelConfig config = rotated_model(kDynamic);
  write_hf_directory({directory.path("final"), DType::kF32}, config, parameter_layout(config),
                     kFetchInitial);
  SampleOptions options;
  options.model_directory = directory.path("final");
  options.prompt = "A prompt of more than 8 bytes";
  options.max_new_tokens = 4;
  options.temperature = 0;
  options.threads = 1;
  std::string wanted = options.prompt;
  for (int i = 0; i < 4; ++i) {
    TokenSampler exact({config, DType::kF32, static_cast<std::int64_t>(wanted.size()), 1},
                       kFetchInitial);
    wanted += static_cast<char>(choose_id(exact.logits_after(ids_of(wanted)), 0, 1, 0));
  }
  EXPECT_EQ(text_of(options), wanted);
}

// A model of 300 ids, whose directory has a tokenizer of its own, goes on with its tokens.
TEST(SampleText, TakesTheTokenizerOfTheDirectory) {
  const TemporaryDirectory directory;
  const ModelConfig config = small_model(true);
  write_hf_directory({directory.path("final"), DType::kF32}, config, parameter_layout(config),
                     kFetchInitial);
  SampleOptions options;
  options.model_directory = directory.path("final");
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
  options.tokenizer = "bytes";
  EXPECT_EQ(sampled(), of_bytes);
  options.tokenizer = tokenizer;
  EXPECT_EQ(sampled(), of_tokens);
  // It ends with the end token.
  directory.write("final/tokenizer_config.json", R"({"eos_token": "ab"})");
  const std::string ended = sampled();
  EXPECT_EQ(of_tokens.substr(0, ended.size()), ended);
  EXPECT_EQ(ended.find("ab", 1), std::string::npos);
  EXPECT_LT(ended.size(), of_tokens.size());
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
  options.model_directory = directory.path("final");
  options.prompt = "a";
  TERRACE_EXPECT_THROW_WITH(text_of(options), ConfigError,
                            "the tokenizer has 301 ids, and the model's vocabulary is 300");
}

TEST(SampleText, DirectoriesWithoutWeightsAreRefused) {
  const TemporaryDirectory directory;
  SampleOptions options;
  options.prompt = "x";
  options.model_directory = directory.path("none");
  TERRACE_EXPECT_THROW_WITH(text_of(options), ConfigError, "not a directory");
  directory.write("bare/config.json", small_model(false).json);
  options.model_directory = directory.path("bare");
  TERRACE_EXPECT_THROW_WITH(text_of(options), ConfigError, "safetensors");
  directory.write("run/final/config.json", small_model(false).json);
  options.model_directory = directory.path("run");
  TERRACE_EXPECT_THROW_WITH(text_of(options), ConfigError, "name the final/");
}

}  // namespace
}  // namespace terrace
