#include <array>
#include <string>

#include "runtime/model/families/family.h"

// Llama 1 to 3: root-mean-square norms, rotary embeddings, gated feed-forward (Touvron et al. 2023,
// arXiv:2302.13971). Keys and names are those of transformers' LlamaConfig and LlamaForCausalLM.
namespace terrace {
namespace {

constexpr auto kArchitectures = std::to_array<std::string_view>({"LlamaForCausalLM", "LlamaModel"});

constexpr auto kKeys = std::to_array<KnownKey>({
    {"hidden_size"},
    {"intermediate_size"},
    {"num_hidden_layers"},
    {"num_attention_heads"},
    {"num_key_value_heads"},
    {"head_dim"},
    {"max_position_embeddings"},
    {"rms_norm_eps"},
    {"hidden_act"},
    {"attention_bias"},
    {"mlp_bias"},
    {"pretraining_tp"},
    {"rope_theta"},
    {"rope_scaling"},
    {"rope_parameters"},
    {"partial_rotary_factor"},
    {"rope_interleaved", "false"},
    {"rope_traditional", "false"},
    {"is_llama_config", "true"},
    {"add_cross_attention", "false"},
});

void read(const ConfigReader& keys, ModelConfig& config) {
  read_sizes(keys, config);
  read_one_rope(keys, config);
  config.names = usual_names();
  config.tied = keys.flag("tie_word_embeddings", false);
  config.has_qkv_bias = keys.flag("attention_bias", false);
  config.has_projection_bias = config.has_qkv_bias;
  config.has_feed_forward_bias = keys.flag("mlp_bias", false);
  const std::string activation = keys.text("hidden_act", "silu");
  if (activation != "silu" && activation != "swish") {  // two names of one function
    keys.refuse("hidden_act", "is not built; silu is");
  }
  if (keys.count("pretraining_tp", 1) != 1) keys.refuse("pretraining_tp", "is not built; 1 is");
}

}  // namespace

const Family kLlamaFamily = {"llama", kArchitectures, kKeys, read};

}  // namespace terrace
