#include <array>

#include "runtime/model/families/family_keys.h"

// Mistral 7B (Jiang et al. 2023, arXiv:2310.06825): llama whose queries see a window of keys. Keys
// and names follow transformers' MistralConfig and MistralForCausalLM.
namespace terrace {
namespace {

constexpr auto kArchitectures =
    std::to_array<std::string_view>({"MistralForCausalLM", "MistralModel"});

constexpr auto kKeys = with_usual_keys({
    {"hidden_act"},
    {"sliding_window"},
    {"layer_types"},
    {"attention_bias", "false"},  // there is none whatever it says
});

void read(const ConfigReader& keys, ModelConfig& config) {
  read_usual(keys, config,
             {.positions = 131072,
              .key_value_heads = 8,
              .takes_null_key_value_heads = false,
              .takes_null_head_width = true});
  read_one_rope(keys, config);
  set_window(config, read_window(keys, 4096));
  if (keys.has("layer_types")) {
    keys.refuse("layer_types", "makes the model a ministral, which is not built; only mistral is");
  }
}

}  // namespace

const Family kMistralFamily = {"mistral", kArchitectures, kKeys, read};

}  // namespace terrace
