#include <array>

#include "runtime/model/families/family_keys.h"

// Granite 3 with experts (IBM 2024): granite whose layers have experts, all of a layer in one
// tensor. Keys and names follow transformers' GraniteMoeConfig and GraniteMoeForCausalLM.
namespace terrace {
namespace {

constexpr auto kArchitectures =
    std::to_array<std::string_view>({"GraniteMoeForCausalLM", "GraniteMoeModel"});

constexpr auto kKeys = with_usual_keys({
    {"hidden_act"},
    {"attention_bias"},
    {"embedding_multiplier"},
    {"attention_multiplier"},
    {"residual_multiplier"},
    {"logits_scaling"},
    {"num_local_experts"},
    {"num_experts_per_tok"},
    {"output_router_logits"},
    {"router_aux_loss_coef"},  // of the balance loss, which output_router_logits asks for
});

void set_expert_names(ModelConfig& config) {
  set_name(config, ParameterKind::kRouter, "block_sparse_moe.router.layer.weight");
  const auto set = [&config](ParameterKind kind, const char* matrix, const char* stored) {
    set_name(config, kind, std::string("block_sparse_moe.experts.{}.") + matrix);
    config.names.at(static_cast<std::size_t>(kind)).stored =
        std::string("model.layers.{}.block_sparse_moe.") + stored;
  };
  set(ParameterKind::kExpertGate, "gate_proj.weight", "input_linear.weight");
  set(ParameterKind::kExpertUp, "up_proj.weight", "input_linear.weight");
  set(ParameterKind::kExpertDown, "down_proj.weight", "output_linear.weight");
}

void read(const ConfigReader& keys, ModelConfig& config) {
  read_usual(keys, config, {.positions = 2048});
  read_attention_bias(keys, config);
  read_one_rope(keys, config);
  read_multipliers(keys, config);
  read_experts(keys, config, {.count = 8, .per_row = 2, .alias = "num_local_experts"});
  config.experts.intermediate = config.intermediate;
  config.experts.rule.rounds_weights = true;
  for (LayerOptions& layer : config.layer_options) layer.has_experts = true;
  set_expert_names(config);
}

}  // namespace

const Family kGraniteMoeFamily = {"granitemoe", kArchitectures, kKeys, read};

}  // namespace terrace
