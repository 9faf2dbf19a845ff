#include <array>

#include "runtime/model/families/family_keys.h"

// Qwen1.5-MoE and Qwen2 with experts (Yang et al. 2024, arXiv:2407.10671): qwen2 where most layers
// have experts in place of the feed-forward, and one more expert that all tokens have. Keys and
// names follow transformers' Qwen2MoeConfig and Qwen2MoeForCausalLM.
namespace terrace {
namespace {

constexpr auto kArchitectures =
    std::to_array<std::string_view>({"Qwen2MoeForCausalLM", "Qwen2MoeModel"});

constexpr auto kKeys = with_usual_keys({
    {"hidden_act"},
    {"qkv_bias"},
    {"sliding_window"},
    {"use_sliding_window"},
    {"max_window_layers"},
    {"layer_types"},
    {"num_experts"},
    {"num_experts_per_tok"},
    {"moe_intermediate_size"},
    {"shared_expert_intermediate_size"},
    {"norm_topk_prob"},
    {"decoder_sparse_step"},
    {"mlp_only_layers"},
    {"output_router_logits"},
    {"router_aux_loss_coef"},  // of the balance loss, which output_router_logits asks for
});

// Unlike in qwen2, every second layer below max_window_layers has the window.
void read_windows(const ConfigReader& keys, ModelConfig& config) {
  const std::int64_t window = keys.flag("use_sliding_window", false) ? read_window(keys, 4096) : 0;
  const std::int64_t end = keys.integer("max_window_layers", 28);
  read_layer_types(keys, config, window, [=](std::int64_t layer) {
    return window != 0 && layer % 2 == 0 && layer < end;
  });
}

void read(const ConfigReader& keys, ModelConfig& config) {
  read_usual(keys, config,
             {.positions = 32768, .key_value_heads = 16, .takes_null_key_value_heads = false});
  read_one_rope(keys, config);
  read_windows(keys, config);
  config.has_qkv_bias = keys.flag("qkv_bias", true);
  read_experts(keys, config,
               {.count = 60, .per_row = 4, .count_key = "num_experts", .alias = "num_experts"});
  config.experts.intermediate = keys.count("moe_intermediate_size", 1408);
  config.experts.shared_intermediate = keys.count("shared_expert_intermediate_size", 5632);
  config.experts.gates_shared = true;
  config.experts.rule.normalizes = keys.flag("norm_topk_prob", false);
  config.experts.rule.rounds_weights = true;
  read_sparse_layers(keys, config);
  set_shared_expert(config, "mlp.shared_expert");
  set_name(config, ParameterKind::kShare, "mlp.shared_expert_gate.weight");
}

}  // namespace

const Family kQwen2MoeFamily = {"qwen2_moe", kArchitectures, kKeys, read};

}  // namespace terrace
