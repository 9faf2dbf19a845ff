#include <array>

#include "runtime/model/families/family_keys.h"

// Qwen2 and Qwen2.5 (Yang et al. 2024, arXiv:2407.10671): llama with biases of query, key and
// value. Keys and names follow transformers' Qwen2Config and Qwen2ForCausalLM.
namespace terrace {
namespace {

constexpr auto kArchitectures = std::to_array<std::string_view>({"Qwen2ForCausalLM", "Qwen2Model"});

constexpr auto kKeys = with_usual_keys({
    {"hidden_act"},
    {"sliding_window"},
    {"use_sliding_window"},
    {"max_window_layers"},
    {"layer_types"},
    {"attention_bias", "true"},  // there are biases whatever it says
    {"use_mrope", "false"},
});

void read(const ConfigReader& keys, ModelConfig& config) {
  read_usual(keys, config, {.positions = 32768, .key_value_heads = 32});
  read_one_rope(keys, config);
  read_upper_windows(keys, config);
  config.has_qkv_bias = true;
}

}  // namespace

const Family kQwen2Family = {"qwen2", kArchitectures, kKeys, read};

}  // namespace terrace
