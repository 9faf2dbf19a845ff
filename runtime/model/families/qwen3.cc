#include <array>

#include "runtime/model/families/family_keys.h"

// Qwen3 (Yang et al. 2025, arXiv:2505.09388): llama with norms of each head's query and key. Keys
// and names follow transformers' Qwen3Config and Qwen3ForCausalLM.
namespace terrace {
namespace {

constexpr auto kArchitectures = std::to_array<std::string_view>({"Qwen3ForCausalLM", "Qwen3Model"});

constexpr auto kKeys = with_usual_keys({
    {"hidden_act"},
    {"sliding_window"},
    {"use_sliding_window"},
    {"max_window_layers"},
    {"layer_types"},
    {"attention_bias"},
});

void read(const ConfigReader& keys, ModelConfig& config) {
  read_usual(keys, config, {.positions = 32768, .key_value_heads = 32, .head_width = 128});
  read_attention_bias(keys, config);
  read_one_rope(keys, config);
  read_upper_windows(keys, config);
  config.query_key_norms = QueryKeyNorms::kEachHead;
}

}  // namespace

const Family kQwen3Family = {"qwen3", kArchitectures, kKeys, read};

}  // namespace terrace
