#include <array>

#include "runtime/model/families/family_keys.h"

// Phi-3 (Abdin et al. 2024, arXiv:2404.14219): llama whose files have query, key and value as one
// tensor, and gate and up as one. Keys and names follow transformers' Phi3Config and
// Phi3ForCausalLM.
namespace terrace {
namespace {

constexpr auto kArchitectures = std::to_array<std::string_view>({"Phi3ForCausalLM", "Phi3Model"});

constexpr auto kKeys = with_usual_keys({
    {"hidden_act"},
    {"sliding_window"},
    {"original_max_position_embeddings"},
    {"attention_bias", "false"},  // there is none whatever it says
    {"full_attn_mod", "1"},
    {"interpolate_factor", "1"},
});

void set_stored_names(ModelConfig& config) {
  const auto set = [&config](ParameterKind kind, const char* name) {
    config.names.at(static_cast<std::size_t>(kind)).stored = name;
  };
  for (const auto kind : {ParameterKind::kQuery, ParameterKind::kKey, ParameterKind::kValue}) {
    set(kind, "model.layers.{}.self_attn.qkv_proj.weight");
  }
  for (const auto kind : {ParameterKind::kGate, ParameterKind::kUp}) {
    set(kind, "model.layers.{}.mlp.gate_up_proj.weight");
  }
}

void read(const ConfigReader& keys, ModelConfig& config) {
  read_usual(keys, config, {.positions = 4096, .epsilon = 1e-5, .padding_token = 32000});
  config.rotary_width = read_rotary_width(keys, config.head_width, 1.0);
  read_one_rope(keys, config,
                {.original_positions = 4096, .only_longrope = true, .may_be_partial = true});
  set_window(config, read_window(keys, 0));
  set_stored_names(config);
}

}  // namespace

const Family kPhi3Family = {"phi3", kArchitectures, kKeys, read};

}  // namespace terrace
