#include <array>

#include "runtime/model/families/family_keys.h"

// OLMoE (Muennighoff et al. 2024, arXiv:2409.02060): llama with experts in all layers, and norms of
// queries and keys over all heads. Keys and names follow transformers' OlmoeConfig and
// OlmoeForCausalLM.
namespace terrace {
namespace {

constexpr auto kArchitectures = std::to_array<std::string_view>({"OlmoeForCausalLM", "OlmoeModel"});

constexpr auto kKeys = with_usual_keys({
    {"hidden_act"},
    {"attention_bias"},
    {"clip_qkv"},
    {"num_experts"},
    {"num_local_experts"},
    {"num_experts_per_tok"},
    {"norm_topk_prob"},
    {"output_router_logits"},
    {"router_aux_loss_coef"},
});

void read(const ConfigReader& keys, ModelConfig& config) {
  read_usual(keys, config,
             {.positions = 4096, .divides_width = true, .epsilon = 1e-5, .padding_token = 1});
  if (config.heads * config.head_width != config.width) {
    keys.refuse("head_dim", "does not fit the norms of queries, which have hidden_size elements");
  }
  if (keys.has("clip_qkv")) {
    keys.refuse("clip_qkv", "asks for queries, keys and values that are clipped; not built");
  }
  read_attention_bias(keys, config);
  read_one_rope(keys, config);
  config.query_key_norms = QueryKeyNorms::kWholeWidth;
  read_experts(keys, config, {.count = 64, .per_row = 8, .balance_coefficient = 0.01});
  config.experts.intermediate = config.intermediate;
  config.experts.rule.normalizes = keys.flag("norm_topk_prob", false);
  config.experts.rule.rounds_weights = true;
  for (LayerOptions& layer : config.layer_options) layer.has_experts = true;
}

}  // namespace

const Family kOlmoeFamily = {"olmoe", kArchitectures, kKeys, read};

}  // namespace terrace
