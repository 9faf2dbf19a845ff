#include <array>

#include "runtime/model/config_rope.h"
#include "runtime/model/families/family_keys.h"
#include "runtime/model/families/gemma.h"

// The text model of Gemma 3 (Gemma team 2025, arXiv:2503.19786): Gemma 2 with norms of queries and
// keys, and other angles in layers with a window. Keys and names follow transformers'
// Gemma3TextConfig and Gemma3ForCausalLM.
namespace terrace {
namespace {

constexpr auto kArchitectures =
    std::to_array<std::string_view>({"Gemma3ForCausalLM", "Gemma3TextModel"});

constexpr auto kKeys = with_usual_keys({
    {"hidden_activation"},
    {"hidden_act", "\"gelu_pytorch_tanh\""},  // hidden_activation is read
    {"attention_bias"},
    {"query_pre_attn_scalar"},
    {"attn_logit_softcapping"},
    {"final_logit_softcapping"},
    {"sliding_window"},
    {"layer_types"},
    {"sliding_window_pattern"},
    {"_sliding_window_pattern"},  // ignored, and written beside layer_types
    {"rope_local_base_freq"},
});

RopeDefaults defaults_of(const ModelConfig& config, double theta) {
  return {theta, config.positions, config.rotated_width()};
}

void read(const ConfigReader& keys, ModelConfig& config) {
  read_gemma(keys, config, 131072);
  config.query_key_norms = QueryKeyNorms::kEachHead;
  if (keys.has("attn_logit_softcapping")) {
    keys.refuse("attn_logit_softcapping", "is ignored by the class; gemma2 has such a cap");
  }
  config.logit_soft_cap = read_soft_cap(keys, "final_logit_softcapping", 0);
  config.layer_options.resize(static_cast<std::size_t>(config.layers));
  const std::int64_t pattern = keys.count("sliding_window_pattern", 6);
  read_layer_types(keys, config, read_window(keys, 4096),
                   [pattern](std::int64_t layer) { return (layer + 1) % pattern != 0; });
  config.ropes = {read_rope_of_layers(keys, "full_attention", defaults_of(config, 1e6)),
                  read_rope_of_layers(keys, "sliding_attention", defaults_of(config, 1e4))};
  for (LayerOptions& layer : config.layer_options) layer.rope = layer.window == 0 ? 0 : 1;
}

}  // namespace

const Family kGemma3TextFamily = {"gemma3_text", kArchitectures, kKeys, read};

}  // namespace terrace
