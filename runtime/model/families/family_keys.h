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

// The parts that several families have in common: most are llama with changes.
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

// Returns the usual keys and a family's own.
template <std::size_t N>
consteval std::array<KnownKey, kUsualKeys.size() + N> with_usual_keys(const KnownKey (&own)[N]) {
  std::array<KnownKey, kUsualKeys.size() + N> keys;
  std::copy(std::begin(own), std::end(own),
            std::copy(kUsualKeys.begin(), kUsualKeys.end(), keys.begin()));
  return keys;
}

// --- defaults ------------------------------------------------------------------------------------

// The values that a family's class takes where config.json lacks a key, and the nulls that it
// takes.
struct ClassDefaults {
  std::int64_t positions = 0;              // where max_position_embeddings is absent; 0: required
  std::int64_t key_value_heads = 0;        // 0: as many as heads
  bool takes_null_key_value_heads = true;  // a null means as many as heads
  std::int64_t head_width = 0;             // 0: hidden_size / num_attention_heads
  bool takes_null_head_width = false;      // a null means hidden_size / num_attention_heads
  bool divides_width = false;              // hidden_size must be a multiple of num_attention_heads
  double epsilon = 1e-6;
  const char* activation_key = "hidden_act";
  const char* activation = "silu";
  bool tied = false;
  std::int64_t padding_token = -1;  // none
};

// Reads sizes, epsilon, activation, whether the head is tied, the padding token, and the usual
// names. Throws ConfigError for what the class refuses.
void read_usual(const ConfigReader& keys, ModelConfig& config, const ClassDefaults& defaults);

// Throws ConfigError for sizes so large that lists alone would fill memory, or that products would
// not fit 64 bits. To be called before anything of such a size is made.
void check_sizes(const ModelConfig& config, const std::string& origin);

// Returns the usual names: model.layers.N.self_attn.q_proj and so on.
ParameterNames usual_names();
void set_name(ModelConfig& config, ParameterKind kind, const std::string& name);
// Sets the names of the expert that all tokens have: "mlp.shared_expert" becomes
// model.layers.N.mlp.shared_expert.gate_proj.weight and so on.
void set_shared_expert(ModelConfig& config, const std::string& module);

// --- options -------------------------------------------------------------------------------------

// Returns whether an activation's name stands for GELU by the tanh formula. transformers has
// several such names.
bool is_tanh_gelu(const std::string& name);

// Reads attention_bias: whether query, key, value and projection have biases.
void read_attention_bias(const ConfigReader& keys, ModelConfig& config);
// Reads mlp_bias: whether gate, up and down have biases.
void read_feed_forward_bias(const ConfigReader& keys, ModelConfig& config);

// Reads partial_rotary_factor: how many of a head's elements are rotated, its first ones.
// `fallback` is the part where the key is absent.
std::int64_t read_rotary_width(const ConfigReader& keys, std::int64_t head_width, double fallback);
// Reads the multipliers of granite.
void read_multipliers(const ConfigReader& keys, ModelConfig& config);

// Reads one rotary table, the same for all layers. Sets the sizes in `defaults`.
void read_one_rope(const ConfigReader& keys, ModelConfig& config, RopeDefaults defaults = {});

// The values that a family's class takes where config.json does not say how many experts there are
// and how many are chosen.
struct ExpertDefaults {
  std::int64_t count = 0;
  std::int64_t per_row = 0;
  double balance_coefficient = 0.001;  // 0: the family has no balance loss
  const char* count_key = "num_local_experts";
  const char* alias = "num_experts";  // another name of count_key
};
// Reads how many experts there are and num_experts_per_tok. Where output_router_logits is true, it
// also reads router_aux_loss_coef, the coefficient of the loss that balances the experts.
void read_experts(const ConfigReader& keys, ModelConfig& config, const ExpertDefaults& defaults);

// Reads which layers have experts: every decoder_sparse_step-th, unless mlp_only_layers has its
// number. To be called when the layers are there: after read_one_rope().
void read_sparse_layers(const ConfigReader& keys, ModelConfig& config);

// Refuses a key that is there and null. To be called for keys whose null the class refuses.
void refuse_null(const ConfigReader& keys, const std::string& key);

// Reads sliding_window. Returns `fallback` where it is absent, 0 (no window) where it is null.
std::int64_t read_window(const ConfigReader& keys, std::int64_t fallback);
// Gives all layers that window.
void set_window(ModelConfig& config, std::int64_t window);
// Gives the window to the layers that layer_types names sliding_attention. Where the key is absent,
// it gives the window to the layers for whose number `is_sliding` returns true. A sliding layer
// needs a window. To be called when the layers are there: after read_one_rope().
void read_layer_types(const ConfigReader& keys, ModelConfig& config, std::int64_t window,
                      const std::function<bool(std::int64_t)>& is_sliding);
// Reads windows as qwen2 and qwen3 do: where use_sliding_window is true, the layers from
// max_window_layers on have one.
void read_upper_windows(const ConfigReader& keys, ModelConfig& config);

}  // namespace terrace
