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
  read_multipliers(keys, config);
}

}  // namespace

const Family kGraniteFamily = {"granite", kArchitectures, kKeys, read};

}  // namespace terrace
