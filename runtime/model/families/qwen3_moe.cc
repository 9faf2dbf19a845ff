#include <array>

#include "runtime/model/families/family_keys.h"

// Qwen3 with experts (Yang et al. 2025, arXiv:2505.09388): qwen3 where most layers have experts in
// place of the feed-forward. Keys and names follow transformers' Qwen3MoeConfig and
// Qwen3MoeForCausalLM.
namespace terrace {
namespace {

constexpr auto kArchitectures =
    std::to_array<std::string_view>({"Qwen3MoeForCausalLM", "Qwen3MoeModel"});

constexpr auto kKeys = with_usual_keys({
    {"hidden_act"},
    {"attention_bias"},
    {"sliding_window"},
    {"use_sliding_window"},
    {"max_window_layers"},
    {"num_experts"},
    {"num_local_experts"},
    {"num_experts_per_tok"},
    {"moe_intermediate_size"},
    {"norm_topk_prob"},
    {"decoder_sparse_step"},
    {"mlp_only_layers"},
    {"output_router_logits"},
    {"router_aux_loss_coef"},
});

// All layers have the window. transformers passes over max_window_layers, unlike in qwen3.
void read_sliding_window(const ConfigReader& keys, ModelConfig& config) {
  if (!keys.flag("use_sliding_window", false)) return;
  set_window(config, read_window(keys, 4096));
  if (keys.integer("max_window_layers", 0) != 0) {
    keys.refuse("max_window_layers",
                "would leave the first layers without a window, but transformers passes over it");
  }
}

void read(const ConfigReader& keys, ModelConfig& config) {
  read_usual(keys, config,
             {.positions = 32768, .key_value_heads = 4, .takes_null_key_value_heads = false});
  read_attention_bias(keys, config);
  read_one_rope(keys, config);
  read_sliding_window(keys, config);
  config.query_key_norms = QueryKeyNorms::kEachHead;
  read_experts(keys, config, {.count = 128, .per_row = 8});
  config.experts.intermediate = keys.count("moe_intermediate_size", 768);
  config.experts.rule.normalizes = keys.flag("norm_topk_prob", false);
  config.experts.rule.rounds_weights = true;
  read_sparse_layers(keys, config);
}

}  // namespace

const Family kQwen3MoeFamily = {"qwen3_moe", kArchitectures, kKeys, read};

}  // namespace terrace
