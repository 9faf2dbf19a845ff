#include <array>

#include "runtime/model/families/family_keys.h"

// Llama 1 to 3: root-mean-square norms, rotary embeddings, gated feed-forward (Touvron et al. 2023,
// arXiv:2302.13971). Keys and names follow transformers' LlamaConfig and LlamaForCausalLM.
namespace terrace {
namespace {

constexpr auto kArchitectures = std::to_array<std::string_view>({"LlamaForCausalLM", "LlamaModel"});

constexpr auto kKeys = with_usual_keys({
    {"hidden_act"},
    {"attention_bias"},
    {"mlp_bias"},
    {"pretraining_tp"},  // how products were cut in pretraining, which transformers passes over
    {"rope_interleaved", "false"},
    {"rope_traditional", "false"},
    {"is_llama_config", "true"},
    {"add_cross_attention", "false"},
});

void read(const ConfigReader& keys, ModelConfig& config) {
  read_usual(keys, config,
             {.positions = 2048, .takes_null_head_width = true, .divides_width = true});
  read_attention_bias(keys, config);
  read_feed_forward_bias(keys, config);
  read_one_rope(keys, config);
}

}  // namespace

const Family kLlamaFamily = {"llama", kArchitectures, kKeys, read};

}  // namespace terrace
