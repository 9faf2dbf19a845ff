#include <array>

#include "runtime/model/families/family_keys.h"

// Granite 3 (IBM 2024): llama with four multipliers. Keys and names follow transformers'
// GraniteConfig and GraniteForCausalLM.
namespace terrace {
namespace {

constexpr auto kArchitectures =
    std::to_array<std::string_view>({"GraniteForCausalLM", "GraniteModel"});

constexpr auto kKeys = with_usual_keys({
    {"hidden_act"},
    {"attention_bias"},
    {"mlp_bias"},
    {"embedding_multiplier"},
    {"attention_multiplier"},
    {"residual_multiplier"},
    {"logits_scaling"},
});

void read(const ConfigReader& keys, ModelConfig& config) {
  read_usual(keys, config, {.positions = 2048});
  read_attention_bias(keys, config);
  read_feed_forward_bias(keys, config);
  read_one_rope(keys, config);
  const auto multiplier = [&keys](const char* key) { return keys.number(key, 1.0); };
  config.embedding_scale = static_cast<float>(multiplier("embedding_multiplier"));
  // Where the key is absent this is 1, too, and does not depend on the head's width.
  config.score_scale = static_cast<float>(multiplier("attention_multiplier"));
  config.residual_scale = static_cast<float>(multiplier("residual_multiplier"));
  config.logit_scale = static_cast<float>(1 / multiplier("logits_scaling"));
}

}  // namespace

const Family kGraniteFamily = {"granite", kArchitectures, kKeys, read};

}  // namespace terrace
