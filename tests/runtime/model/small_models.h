#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "base/check.h"
#include "runtime/model/model_config.h"
#include "runtime/model/parameter_layout.h"

namespace terrace {

// The sizes of a model for a test.
struct SmallModel {
  std::int64_t layers = 2;
  std::int64_t width = 64;
  std::int64_t heads = 4;
  std::int64_t key_value_heads = 2;  // of gpt2: as many as heads
  std::int64_t head_width = 16;      // of gpt2: width / heads
  std::int64_t intermediate = 176;   // each expert has a quarter of it
  std::int64_t vocabulary = 256;
  std::int64_t positions = 64;
  bool tied = false;
  bool bias = false;         // attention_bias and mlp_bias, where the family has these keys
  std::int64_t window = 16;  // of gemma2, gemma3_text, gpt_oss: in the layers that have one
};

// Returns the keys of experts; empty for a family without them. Where layers may have none, the
// second layer has none, or the first one.
inline std::string small_experts_json(std::string_view family, const SmallModel& sizes) {
  const std::int64_t inner = sizes.intermediate / 4;
  if (family == "mixtral" || family == "gpt_oss" || family == "olmoe") {
    return R"(, "num_experts": 5, "num_experts_per_tok": 2)";
  }
  if (family == "granitemoe") {
    return R"(, "num_local_experts": 5, "num_experts_per_tok": 2, "residual_multiplier": 0.5,
              "attention_multiplier": 0.3)";
  }
  if (family == "glm4_moe") {
    return fmt::format(
        R"(, "n_routed_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": {},
            "partial_rotary_factor": 0.6, "use_qk_norm": true, "routed_scaling_factor": 1.5)",
        inner);
  }
  if (!family.ends_with("_moe")) return "";
  return fmt::format(
      R"(, "num_experts": 5, "num_experts_per_tok": 2, "mlp_only_layers": [1],
          "moe_intermediate_size": {}{})",
      inner,
      family == "qwen2_moe" ? fmt::format(R"(, "shared_expert_intermediate_size": {})", 2 * inner)
                            : "");
}

// Returns its config.json, as transformers writes it for the family.
inline std::string small_config_json(std::string_view family, const SmallModel& sizes) {
  if (family == "gpt2") {
    return fmt::format(
        R"({{"model_type": "gpt2", "n_embd": {}, "n_layer": {}, "n_head": {}, "n_positions": {},
            "vocab_size": {}, "n_inner": {}, "tie_word_embeddings": {}}})",
        sizes.width, sizes.layers, sizes.heads, sizes.positions, sizes.vocabulary,
        sizes.intermediate, sizes.tied);
  }
  const bool is_gemma = family.starts_with("gemma");
  const bool has_no_bias = family == "mistral" || family == "mixtral" || family == "qwen2" ||
                           family == "qwen2_moe" || family == "phi3";
  const bool is_gpt_oss = family == "gpt_oss";
  const bool has_mlp_bias = family == "llama" || family == "smollm3" || family == "granite";
  const bool has_only_experts =
      family == "mixtral" || family == "granitemoe" || family == "olmoe" || is_gpt_oss;
  std::string more;
  if (!has_no_bias) more += fmt::format(R"(, "attention_bias": {})", sizes.bias);
  if (has_mlp_bias) more += fmt::format(R"(, "mlp_bias": {})", sizes.bias);
  if (is_gemma || is_gpt_oss) more += fmt::format(R"(, "sliding_window": {})", sizes.window);
  more += small_experts_json(family, sizes);
  return fmt::format(
      R"({{"model_type": "{}", "hidden_size": {}, "num_hidden_layers": {},
          "num_attention_heads": {}, "num_key_value_heads": {}, "head_dim": {},
          "intermediate_size": {}, "vocab_size": {}, "max_position_embeddings": {},
          "rms_norm_eps": 1e-05, "tie_word_embeddings": {}, "pad_token_id": {}{}}})",
      family, sizes.width, sizes.layers, sizes.heads, sizes.key_value_heads, sizes.head_width,
      has_only_experts ? sizes.intermediate / 4 : sizes.intermediate, sizes.vocabulary,
      sizes.positions, sizes.tied, family == "llama" ? "null" : "3", more);
}

inline ModelConfig small_model(std::string_view family, const SmallModel& sizes) {
  return parse_model_config(small_config_json(family, sizes), "small");
}

// Returns the only tensor of a unit whose name ends with `suffix`.
inline const ParameterTensor& tensor_named(const UnitLayout& unit, std::string_view suffix) {
  const ParameterTensor* found = nullptr;
  for (const ParameterTensor& tensor : unit.tensors) {
    if (!tensor.name.ends_with(suffix)) continue;
    EXPECT_EQ(found, nullptr) << suffix;
    found = &tensor;
  }
  TERRACE_CHECK(found != nullptr);
  return *found;
}

}  // namespace terrace
