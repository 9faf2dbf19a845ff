#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "runtime/model/config_rope.h"
#include "runtime/model/families/family.h"

// What several families have in common: most are llama with changes.
namespace terrace {

// --- keys ----------------------------------------------------------------------------------------

inline constexpr auto kUsualKeys = std::to_array<KnownKey>({
    {"hidden_size"},
    {"intermediate_size"},
    {"num_hidden_layers"},
    {"num_attention_heads"},
    {"num_key_value_heads"},
    {"head_dim"},
    {"max_position_embeddings"},
    {"rms_norm_eps"},
    {"rope_theta"},
    {"rope_scaling"},
    {"rope_parameters"},
    {"partial_rotary_factor"},
});

// The usual keys and a family's own.
template <std::size_t N>
consteval std::array<KnownKey, kUsualKeys.size() + N> with_usual_keys(const KnownKey (&own)[N]) {
  std::array<KnownKey, kUsualKeys.size() + N> keys;
  std::copy(std::begin(own), std::end(own),
            std::copy(kUsualKeys.begin(), kUsualKeys.end(), keys.begin()));
  return keys;
}

// --- defaults ------------------------------------------------------------------------------------

// What a family's class takes where config.json lacks a key, and which nulls it takes.
struct ClassDefaults {
  std::int64_t key_value_heads = 0;        // 0: as many as heads
  bool takes_null_key_value_heads = true;  // as many as heads, then
  std::int64_t head_width = 0;             // 0: hidden_size / num_attention_heads
  bool takes_null_head_width = false;      // hidden_size / num_attention_heads, then
  bool divides_width = false;              // hidden_size must be a multiple of num_attention_heads
  double epsilon = 1e-6;
  const char* activation_key = "hidden_act";
  const char* activation = "silu";
  bool tied = false;
  std::int64_t padding_token = -1;  // none
};

// Sizes, epsilon, activation, whether the head is tied, the padding token, and the usual names.
// Throws ConfigError for what the class refuses.
void read_usual(const ConfigReader& keys, ModelConfig& config, const ClassDefaults& defaults);

// Throws ConfigError for sizes whose mere lists would fill memory, or whose products would not fit
// 64 bits. To be called before anything is made of such a size.
void check_sizes(const ModelConfig& config, const std::string& origin);

// model.layers.N.self_attn.q_proj and so on.
ParameterNames usual_names();
void set_name(ModelConfig& config, ParameterKind kind, const std::string& name);

// --- options -------------------------------------------------------------------------------------

// Whether an activation's name is that of GELU by the tanh formula. transformers has several.
bool is_tanh_gelu(const std::string& name);

// attention_bias: of query, key, value and projection.
void read_attention_bias(const ConfigReader& keys, ModelConfig& config);
// mlp_bias: of gate, up and down.
void read_feed_forward_bias(const ConfigReader& keys, ModelConfig& config);

// One rotary table, the same for all layers. Sets the sizes in `defaults`.
void read_one_rope(const ConfigReader& keys, ModelConfig& config, RopeDefaults defaults = {});

// Refuses a key that is there and null, where the class does.
void refuse_null(const ConfigReader& keys, const std::string& key);

// sliding_window: `fallback` where it is absent, 0 (no window) where it is null.
std::int64_t read_window(const ConfigReader& keys, std::int64_t fallback);
// Gives all layers that window.
void set_window(ModelConfig& config, std::int64_t window);
// Gives the window to the layers that layer_types names sliding_attention; where the key is absent,
// to those whose number `is_sliding` holds of. A sliding layer needs a window. To be called when
// the layers are there: after read_one_rope().
void read_layer_types(const ConfigReader& keys, ModelConfig& config, std::int64_t window,
                      const std::function<bool(std::int64_t)>& is_sliding);
// As of qwen2 and qwen3: where use_sliding_window is true, layers from max_window_layers on.
void read_upper_windows(const ConfigReader& keys, ModelConfig& config);

}  // namespace terrace
