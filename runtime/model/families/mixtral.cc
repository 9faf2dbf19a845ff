#include <array>

#include "runtime/model/families/family_keys.h"

// Mixtral 8x7B (Jiang et al. 2024, arXiv:2401.04088): mistral whose layers have experts. Keys and
// names follow transformers' MixtralConfig and MixtralForCausalLM.
namespace terrace {
namespace {

constexpr auto kArchitectures =
    std::to_array<std::string_view>({"MixtralForCausalLM", "MixtralModel"});

constexpr auto kKeys = with_usual_keys({
    {"hidden_act"},
    {"sliding_window"},
    {"num_local_experts"},
    {"num_experts"},
    {"num_experts_per_tok"},
    {"output_router_logits"},
    {"router_aux_loss_coef"},
    {"router_jitter_noise"},
});

void read(const ConfigReader& keys, ModelConfig& config) {
  read_usual(keys, config,
             {.positions = 131072,
              .key_value_heads = 8,
              .takes_null_key_value_heads = false,
              .takes_null_head_width = true,
              .epsilon = 1e-5});
  read_one_rope(keys, config, {.theta = 1e6});
  set_window(config, read_window(keys, 0));
  read_experts(keys, config, {.count = 8, .per_row = 2});
  config.experts.intermediate = config.intermediate;
  if (keys.number_or_zero("router_jitter_noise", 0) != 0) {
    keys.refuse("router_jitter_noise",
                "asks for noise in the router's input while training, which is not built; use 0");
  }
  for (LayerOptions& layer : config.layer_options) layer.has_experts = true;
  set_name(config, ParameterKind::kRouter, "block_sparse_moe.gate.weight");
  set_name(config, ParameterKind::kExpertGate, "block_sparse_moe.experts.{}.w1.weight");
  set_name(config, ParameterKind::kExpertUp, "block_sparse_moe.experts.{}.w3.weight");
  set_name(config, ParameterKind::kExpertDown, "block_sparse_moe.experts.{}.w2.weight");
}

}  // namespace

const Family kMixtralFamily = {"mixtral", kArchitectures, kKeys, read};

}  // namespace terrace
