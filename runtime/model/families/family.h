#pragma once

#include <span>
#include <string_view>

#include "runtime/model/config_keys.h"
#include "runtime/model/config_reader.h"
#include "runtime/model/model_config.h"

// The families of models: each is a file in this folder and a line in families.cc. docs/adding.md
// says how to add one.
namespace terrace {

struct Family {
  std::string_view model_type;                      // of config.json
  std::span<const std::string_view> architectures;  // that are read; of one that is absent, any
  std::span<const KnownKey> keys;                   // besides those that every model may have
  // Sets the options and the names of the parameters. Throws ConfigError for what is not built.
  void (*read)(const ConfigReader& keys, ModelConfig& config);
};

// Null for a model_type that is not built.
const Family* find_family(std::string_view model_type);
std::span<const Family* const> all_families();

extern const Family kGpt2Family;
extern const Family kLlamaFamily;

// --- what several families have in common
// -----------------------------------------------------------

// hidden_size, intermediate_size, num_hidden_layers, num_attention_heads, num_key_value_heads,
// head_dim, vocab_size, max_position_embeddings, rms_norm_eps.
void read_sizes(const ConfigReader& keys, ModelConfig& config);
// model.layers.N.self_attn.q_proj and so on, as most families name their parameters.
ParameterNames usual_names();
// One rotary table, the same for all layers; `theta` is the class's.
void read_one_rope(const ConfigReader& keys, ModelConfig& config, double theta = 10000.0);

}  // namespace terrace
