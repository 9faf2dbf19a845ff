#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "runtime/model/model_config.h"
#include "runtime/model/parameter_init.h"

// Provides small models with random weights for tests that sample.
namespace terrace {

inline constexpr auto kFetchInitial = [](const UnitLayout&, const ParameterTensor& tensor,
                                         std::int64_t begin, std::span<float> out) {
  init_parameter(tensor, 5, begin, out);
};

// Returns a model like the preset nano, but smaller.
inline ModelConfig small_model(bool gpt2) {
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

// Returns a model whose weights are so large that positions matter.
inline ModelConfig rotated_model(const std::string& scaling) {
  return parse_model_config(R"({"model_type": "llama", "architectures": ["LlamaForCausalLM"],
    "num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 48,
    "vocab_size": 256, "max_position_embeddings": 8, "initializer_range": 0.3,
    "rope_scaling": )" + scaling +
                                "}",
                            "test");
}

inline constexpr const char* kDynamic = R"({"rope_type": "dynamic", "factor": 8})";
inline constexpr const char* kLongRope = R"({"rope_type": "longrope",
    "original_max_position_embeddings": 32, "factor": 4, "short_factor": [1, 2, 3, 4],
    "long_factor": [4, 8, 16, 32]})";
}  // namespace terrace
