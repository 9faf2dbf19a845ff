#include <array>
#include <vector>

#include "runtime/model/families/family_keys.h"

// SmolLM3 (Hugging Face 2025): llama in which some layers do not rotate positions (Yang et al.
// 2025, arXiv:2501.18795). Keys and names follow transformers' SmolLM3Config and
// SmolLM3ForCausalLM.
namespace terrace {
namespace {

constexpr auto kArchitectures =
    std::to_array<std::string_view>({"SmolLM3ForCausalLM", "SmolLM3Model"});

constexpr auto kKeys = with_usual_keys({
    {"hidden_act"},
    {"attention_bias"},
    {"mlp_bias"},
    {"no_rope_layers"},
    {"no_rope_layer_interval"},
    {"sliding_window"},
    {"use_sliding_window"},
    {"layer_types"},
    {"max_window_layers"},  // ignored, but published files have it
    {"pretraining_tp"},     // also ignored and published
});

// Reads which layers rotate positions. In spite of its name, no_rope_layers has a 1 for each layer
// that rotates them. Where it is absent, the last of every no_rope_layer_interval layers does not.
std::vector<bool> read_rotating_layers(const ConfigReader& keys, std::int64_t layers) {
  constexpr const char* kKey = "no_rope_layers";
  std::vector<bool> rotates;
  if (!keys.has(kKey)) {
    const std::int64_t interval = keys.count("no_rope_layer_interval", 4);
    for (std::int64_t i = 0; i < layers; ++i) rotates.push_back((i + 1) % interval != 0);
    return rotates;
  }
  for (const double number : keys.numbers(kKey)) {
    if (number != 0 && number != 1) keys.wrong(kKey, "a list of 0 and 1");
    rotates.push_back(number == 1);
  }
  if (static_cast<std::int64_t>(rotates.size()) != layers) {
    keys.wrong(kKey, "one number for each layer");
  }
  return rotates;
}

void read(const ConfigReader& keys, ModelConfig& config) {
  read_usual(keys, config,
             {.positions = 32768, .key_value_heads = 4, .tied = true, .padding_token = 128004});
  read_attention_bias(keys, config);
  read_feed_forward_bias(keys, config);
  read_one_rope(keys, config, {.theta = 2e6});
  const std::vector<bool> rotates = read_rotating_layers(keys, config.layers);
  for (std::size_t i = 0; i < rotates.size(); ++i) {
    if (!rotates[i]) config.layer_options[i].rope = -1;
  }
  const std::int64_t window = read_window(keys, 0);
  const bool is_used = keys.flag("use_sliding_window", false) && window != 0;
  read_layer_types(keys, config, window, [&](std::int64_t layer) {
    return is_used && !rotates[static_cast<std::size_t>(layer)];
  });
}

}  // namespace

const Family kSmolLm3Family = {"smollm3", kArchitectures, kKeys, read};

}  // namespace terrace
