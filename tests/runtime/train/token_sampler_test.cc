#include "runtime/train/token_sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/model/adapter_modules.h"
#include "runtime/model/adapter_targets.h"
#include "tests/runtime/train/sampled_models.h"

namespace terrace {
namespace {

using Ids = std::vector<std::int32_t>;

// Returns `count` ids from a small vocabulary, in an irregular order.
Ids mixed_ids(std::int64_t count) {
  Ids ids;
  for (std::int64_t i = 0; i < count; ++i) {
    ids.push_back(static_cast<std::int32_t>((i * 73 + i * i * 7 + 11) % 256));
  }
  return ids;
}

std::vector<float> logits_of(TokenSampler& sampler, const Ids& ids) {
  const auto logits = sampler.logits_after(ids);
  return {logits.begin(), logits.end()};
}

std::vector<float> logits_of_new_sampler(const TokenSampler::Shape& shape, const Ids& ids) {
  TokenSampler sampler(shape, kFetchInitial);
  return logits_of(sampler, ids);
}

float largest_distance(const std::vector<float>& a, const std::vector<float>& b) {
  float largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) largest = std::max(largest, std::abs(a[i] - b[i]));
  return largest;
}

std::int64_t likeliest(const std::vector<float>& logits) {
  return std::ranges::max_element(logits) - logits.begin();
}

// Returns a model with all options: layers with a window and without, soft caps, norms of queries
// and keys, two rotary tables, and heads that share keys.
ModelConfig windowed_model() {
  return parse_model_config(R"({"model_type": "gemma3_text",
    "architectures": ["Gemma3ForCausalLM"], "num_hidden_layers": 3, "hidden_size": 32,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "intermediate_size": 48,
    "vocab_size": 256, "max_position_embeddings": 64, "initializer_range": 0.3,
    "query_pre_attn_scalar": 8, "sliding_window": 5, "final_logit_softcapping": 20.0,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]})",
                            "test");
}

ModelConfig capped_model() {
  return parse_model_config(R"({"model_type": "gemma2", "architectures": ["Gemma2ForCausalLM"],
    "num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 8, "intermediate_size": 48, "vocab_size": 256, "max_position_embeddings": 64,
    "initializer_range": 0.3, "query_pre_attn_scalar": 8, "sliding_window": 6,
    "attn_logit_softcapping": 3.0, "final_logit_softcapping": 20.0})",
                            "test");
}

std::vector<ModelConfig> models() {
  return {small_model(false), small_model(true), windowed_model(), capped_model()};
}

// Adding tokens to a text one by one, or a few at a time, gives the same logits as computing the
// whole text at once. The logits are only approximately equal, because products of few rows use
// other code, which adds in a different order.
TEST(TokenSampler, KeptKeysGiveTheLogitsOfTheWholeText) {
  for (const ModelConfig& config : models()) {
    SCOPED_TRACE(config.name);
    const TokenSampler::Shape shape = {config, DType::kF32, 40, 2};
    TokenSampler grown(shape, kFetchInitial);
    Ids ids = mixed_ids(40);
    for (const std::int64_t length : {1, 2, 3, 12, 13, 20, 40}) {
      const Ids text(ids.begin(), ids.begin() + length);
      const std::vector<float> whole = logits_of_new_sampler(shape, text);
      const std::vector<float> kept = logits_of(grown, text);
      float size = 0;
      for (const float logit : whole) size = std::max(size, std::abs(logit));
      EXPECT_LT(largest_distance(kept, whole), 2e-5F * size) << length;
      EXPECT_EQ(likeliest(kept), likeliest(whole)) << length;
    }
  }
}

// In training, whole modules lie apart from the matrices that they are multiplied with. Sampling
// gives the same logits with and without them.
TEST(TokenSampler, WholeModulesOfAdaptersDoNotCount) {
  ModelConfig config = small_model(false);
  config = with_adapter(config, {.rank = 2, .alpha = 4, .targets = {}}, {"q_proj", "gate_proj"});
  const Ids ids = mixed_ids(12);
  const std::vector<float> plain = logits_of_new_sampler({config, DType::kF32, 40, 2}, ids);
  config.adapter.whole_modules = modules_that_match(config, {"*.1.mlp.up_proj.*", "*.k_proj.*"});
  EXPECT_EQ(logits_of_new_sampler({config, DType::kF32, 40, 2}, ids), plain);
}

// A long text is computed in parts of 512 rows.
TEST(TokenSampler, LongTextsComeInParts) {
  const ModelConfig config = windowed_model();
  const Ids ids = mixed_ids(1100);
  const TokenSampler::Shape shape = {config, DType::kF32, 1100, 2};
  TokenSampler in_parts(shape, kFetchInitial);
  TokenSampler otherwise(shape, kFetchInitial);
  logits_of(otherwise, Ids(ids.begin(), ids.begin() + 300));
  const std::vector<float> a = logits_of(in_parts, ids);
  const std::vector<float> b = logits_of(otherwise, ids);
  EXPECT_LT(largest_distance(a, b), 1e-3F);
  EXPECT_EQ(likeliest(a), likeliest(b));
}

TEST(TokenSampler, OnlyWhatATextBeginsWithIsKept) {
  for (const ModelConfig& config : models()) {
    SCOPED_TRACE(config.name);
    const TokenSampler::Shape shape = {config, DType::kF32, 40, 1};
    TokenSampler sampler(shape, kFetchInitial);
    const Ids first = mixed_ids(30);
    Ids other = first;
    other[9] += other[9] < 255 ? 1 : -1;
    const std::vector<float> wanted = logits_of_new_sampler(shape, first);
    EXPECT_EQ(logits_of(sampler, first), wanted);
    EXPECT_NE(logits_of(sampler, other), wanted);
    EXPECT_LT(largest_distance(logits_of(sampler, first), wanted), 1e-3F);
    // Asks for the same text once more, and then for its beginning.
    EXPECT_LT(largest_distance(logits_of(sampler, first), wanted), 1e-3F);
    const Ids beginning(first.begin(), first.begin() + 7);
    EXPECT_LT(
        largest_distance(logits_of(sampler, beginning), logits_of_new_sampler(shape, beginning)),
        1e-3F);
  }
}

TEST(TokenSampler, BitsDoNotDependOnThreads) {
  for (const DType type : {DType::kF32, DType::kBF16}) {
    const ModelConfig config = windowed_model();
    TokenSampler one({config, type, 40, 1}, kFetchInitial);
    TokenSampler three({config, type, 40, 3}, kFetchInitial);
    for (const std::int64_t length : {20, 21, 25, 40}) {
      const Ids text = mixed_ids(length);
      EXPECT_EQ(logits_of(one, text), logits_of(three, text)) << length;
    }
  }
}

// If the rotary angles depend on the length of the sequence, they follow the length of the text,
// even if keys have been kept from a shorter text.
TEST(TokenSampler, TurnsByTheLengthOfTheText) {
  for (const char* scaling : {kDynamic, kLongRope}) {
    const ModelConfig config = rotated_model(scaling);
    TokenSampler::Shape shape = {config, DType::kF32, 64, 1};
    TokenSampler of_longest(shape, kFetchInitial);
    shape.rope_of_text = true;
    TokenSampler of_text(shape, kFetchInitial);
    // longrope uses its short factors up to length 32; dynamic changes its angles from length 8 on.
    for (const std::int64_t length : {23, 24, 32, 33, 34, 40, 25}) {
      const Ids text = mixed_ids(length);
      const std::vector<float> wanted =
          logits_of_new_sampler({config, DType::kF32, length, 1}, text);
      EXPECT_LT(largest_distance(logits_of(of_text, text), wanted), 1e-4F) << scaling << length;
      const bool is_same = scaling == kLongRope && length > 32;
      EXPECT_EQ(largest_distance(logits_of(of_longest, text), wanted) > 1e-2F, !is_same)
          << scaling << length;
    }
  }
}

TEST(TokenSampler, MemoryGrowsWithTheText) {
  const ModelConfig config = small_model(false);
  const auto bytes = [&](DType type, std::int64_t positions) {
    return TokenSampler::memory_bytes({config, type, positions, 1});
  };
  const auto parameters = static_cast<std::size_t>(parameter_count(parameter_layout(config)));
  EXPECT_LT(parameters * sizeof(float), bytes(DType::kF32, 16));
  // For each position, memory holds the keys and values of 2 layers, 16 numbers each, and a row of
  // the rotary table, also of 16 numbers.
  EXPECT_GE(bytes(DType::kF32, 2000) - bytes(DType::kF32, 1000), 1000U * (2 * 2 * 16 + 16) * 4);
}

}  // namespace
}  // namespace terrace
