#include "runtime/model/families/gemma.h"

#include <cmath>

#include "runtime/model/families/family_keys.h"

namespace terrace {

void read_gemma(const ConfigReader& keys, ModelConfig& config, std::int64_t positions) {
  for (const char* key : {"sliding_window", "query_pre_attn_scalar"}) refuse_null(keys, key);
  read_usual(keys, config,
             {.positions = positions,
              .key_value_heads = 4,
              .takes_null_key_value_heads = false,
              .head_width = 256,
              .divides_width = true,
              .activation_key = "hidden_activation",
              .activation = "gelu_pytorch_tanh",
              .tied = true,
              .padding_token = 0});
  read_attention_bias(keys, config);
  config.norm.form = RmsNormForm::kMultiplyByOnePlus;
  config.norm_places = NormPlaces::kAround;
  config.embedding_scale = std::sqrt(static_cast<float>(config.width));
  config.rounds_embedding_scale = true;
  const auto scalar = static_cast<double>(keys.count("query_pre_attn_scalar", 256));
  config.score_scale = static_cast<float>(1 / std::sqrt(scalar));
  set_name(config, ParameterKind::kAttentionOutNorm, "post_attention_layernorm.weight");
  set_name(config, ParameterKind::kFeedForwardNorm, "pre_feedforward_layernorm.weight");
  set_name(config, ParameterKind::kFeedForwardOutNorm, "post_feedforward_layernorm.weight");
}

float read_soft_cap(const ConfigReader& keys, const std::string& key, double fallback) {
  return static_cast<float>(keys.number(key, keys.names(key) ? 0 : fallback));
}

}  // namespace terrace
