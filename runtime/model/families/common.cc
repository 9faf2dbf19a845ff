#include <fmt/format.h>

#include "runtime/model/config_rope.h"
#include "runtime/model/families/family.h"

namespace terrace {

void read_sizes(const ConfigReader& keys, ModelConfig& config) {
  config.width = keys.count("hidden_size");
  config.intermediate = keys.count("intermediate_size");
  config.layers = keys.count("num_hidden_layers");
  config.heads = keys.count("num_attention_heads");
  config.key_value_heads = keys.count("num_key_value_heads", config.heads);
  config.vocabulary = keys.count("vocab_size");
  config.positions = keys.count("max_position_embeddings");
  if (config.heads % config.key_value_heads != 0) {
    keys.refuse("num_attention_heads",
                fmt::format("is not a multiple of num_key_value_heads {}", config.key_value_heads));
  }
  if (!keys.has("head_dim") && config.width % config.heads != 0) {
    keys.refuse("hidden_size", fmt::format("is not a multiple of num_attention_heads {}, and there "
                                           "is no head_dim",
                                           config.heads));
  }
  config.head_width = keys.count("head_dim", config.width / config.heads);
  if (config.head_width % 2 != 0) {
    keys.refuse(
        keys.has("head_dim") ? "head_dim" : "hidden_size",
        fmt::format("makes heads of odd width {}, which cannot be rotated", config.head_width));
  }
  config.norm.epsilon = static_cast<float>(keys.number("rms_norm_eps", 1e-6));
}

ParameterNames usual_names() {
  ParameterNames names;
  const auto set = [&names](ParameterKind kind, const char* name) {
    names.at(static_cast<std::size_t>(kind)).name = name;
  };
  set(ParameterKind::kTokenEmbedding, "model.embed_tokens.weight");
  set(ParameterKind::kQuery, "model.layers.{}.self_attn.q_proj.weight");
  set(ParameterKind::kKey, "model.layers.{}.self_attn.k_proj.weight");
  set(ParameterKind::kValue, "model.layers.{}.self_attn.v_proj.weight");
  set(ParameterKind::kProjection, "model.layers.{}.self_attn.o_proj.weight");
  set(ParameterKind::kGate, "model.layers.{}.mlp.gate_proj.weight");
  set(ParameterKind::kUp, "model.layers.{}.mlp.up_proj.weight");
  set(ParameterKind::kDown, "model.layers.{}.mlp.down_proj.weight");
  set(ParameterKind::kHeadWeight, "lm_head.weight");
  set(ParameterKind::kQueryBias, "model.layers.{}.self_attn.q_proj.bias");
  set(ParameterKind::kKeyBias, "model.layers.{}.self_attn.k_proj.bias");
  set(ParameterKind::kValueBias, "model.layers.{}.self_attn.v_proj.bias");
  set(ParameterKind::kProjectionBias, "model.layers.{}.self_attn.o_proj.bias");
  set(ParameterKind::kGateBias, "model.layers.{}.mlp.gate_proj.bias");
  set(ParameterKind::kUpBias, "model.layers.{}.mlp.up_proj.bias");
  set(ParameterKind::kDownBias, "model.layers.{}.mlp.down_proj.bias");
  set(ParameterKind::kAttentionNorm, "model.layers.{}.input_layernorm.weight");
  set(ParameterKind::kFeedForwardNorm, "model.layers.{}.post_attention_layernorm.weight");
  set(ParameterKind::kFinalNorm, "model.norm.weight");
  return names;
}

void read_one_rope(const ConfigReader& keys, ModelConfig& config, double theta) {
  const RopeDefaults defaults = {theta, config.positions, config.rotated_width()};
  config.ropes = {read_rope(keys, defaults)};
  config.layer_options.assign(static_cast<std::size_t>(config.layers), LayerOptions{.rope = 0});
}

}  // namespace terrace
