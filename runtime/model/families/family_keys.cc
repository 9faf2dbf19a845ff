#include "runtime/model/families/family_keys.h"

#include <fmt/format.h>

#include <cmath>
#include <vector>

#include "base/error.h"
#include "runtime/model/config_rope.h"

namespace terrace {
namespace {

std::int64_t read_key_value_heads(const ConfigReader& keys, const ClassDefaults& defaults,
                                  std::int64_t heads) {
  if (!defaults.takes_null_key_value_heads) refuse_null(keys, "num_key_value_heads");
  const bool is_class_default = defaults.key_value_heads != 0 && !keys.names("num_key_value_heads");
  const std::int64_t count =
      keys.count("num_key_value_heads", is_class_default ? defaults.key_value_heads : heads);
  if (heads % count != 0) {
    keys.refuse("num_attention_heads",
                fmt::format("is not a multiple of num_key_value_heads {}{}", count,
                            is_class_default ? ", the class's default" : ""));
  }
  return count;
}

std::int64_t read_head_width(const ConfigReader& keys, const ClassDefaults& defaults,
                             const ModelConfig& config) {
  if (!defaults.takes_null_head_width) refuse_null(keys, "head_dim");
  const bool is_divided =
      !keys.has("head_dim") && (defaults.head_width == 0 || keys.names("head_dim"));
  if ((is_divided || defaults.divides_width) && config.width % config.heads != 0) {
    keys.refuse("hidden_size",
                fmt::format("is not a multiple of num_attention_heads {}{}", config.heads,
                            defaults.divides_width ? "" : ", and there is no head_dim"));
  }
  const std::int64_t width =
      keys.count("head_dim", is_divided ? config.width / config.heads : defaults.head_width);
  if (width % 2 != 0) {
    keys.refuse(keys.has("head_dim") ? "head_dim" : "hidden_size",
                fmt::format("makes heads of odd width {}, which cannot be rotated", width));
  }
  return width;
}

FeedForward read_activation(const ConfigReader& keys, const ClassDefaults& defaults) {
  const std::string name = keys.text(defaults.activation_key, defaults.activation);
  if (name == "silu" || name == "swish") return FeedForward::kSiluGate;  // names of one function
  if (is_tanh_gelu(name)) return FeedForward::kGeluGate;
  keys.refuse(defaults.activation_key, "is not built; use silu or gelu_pytorch_tanh");
}

// Reads the padding token, whose row gets no gradient through the embedding. An id below 0 counts
// from the end.
std::int64_t read_padding(const ConfigReader& keys, const ClassDefaults& defaults,
                          std::int64_t vocabulary) {
  constexpr const char* kKey = "pad_token_id";
  if (keys.names(kKey) && !keys.has(kKey)) return -1;
  if (!keys.has(kKey) && defaults.padding_token < 0) return -1;
  const std::int64_t id = keys.integer(kKey, defaults.padding_token);
  if (id < -vocabulary || id >= vocabulary) {
    const std::string of_class =
        keys.has(kKey) ? "" : fmt::format(": the class's default, {}, is not one", id);
    keys.wrong(kKey, fmt::format("an id in the vocabulary of {}{}", vocabulary, of_class));
  }
  return id < 0 ? id + vocabulary : id;
}

}  // namespace

// --- what all have -------------------------------------------------------------------------------

void read_usual(const ConfigReader& keys, ModelConfig& config, const ClassDefaults& defaults) {
  config.width = keys.count("hidden_size");
  config.intermediate = keys.count("intermediate_size");
  config.layers = keys.count("num_hidden_layers");
  config.heads = keys.count("num_attention_heads");
  config.vocabulary = keys.count("vocab_size");
  refuse_null(keys, "max_position_embeddings");
  config.positions = defaults.positions == 0
                         ? keys.count("max_position_embeddings")
                         : keys.count("max_position_embeddings", defaults.positions);
  config.key_value_heads = read_key_value_heads(keys, defaults, config.heads);
  config.head_width = read_head_width(keys, defaults, config);
  config.norm.epsilon = static_cast<float>(keys.number("rms_norm_eps", defaults.epsilon));
  config.feed_forward = read_activation(keys, defaults);
  config.tied = keys.flag("tie_word_embeddings", defaults.tied);
  config.padding_token = read_padding(keys, defaults, config.vocabulary);
  config.names = usual_names();
  check_sizes(config, keys.origin());
}

void check_sizes(const ModelConfig& config, const std::string& origin) {
  constexpr std::int64_t kLayersMax = 10'000;
  constexpr std::int64_t kWidthMax = std::int64_t{1} << 24;
  const auto refuse = [&](const char* what, std::int64_t is, std::int64_t most) {
    throw ConfigError(fmt::format("{}: {} {}, but at most {} are built", origin, is, what, most),
                      "is this the config.json of a language model?");
  };
  if (config.layers > kLayersMax) refuse("layers", config.layers, kLayersMax);
  for (const std::int64_t width :
       {config.width, config.intermediate, config.vocabulary, config.heads, config.head_width}) {
    if (width > kWidthMax) refuse("columns in a matrix", width, kWidthMax);
  }
  if (config.positions > kWidthMax) refuse("positions", config.positions, kWidthMax);
  const std::int64_t of_heads = config.heads * config.head_width;
  if (of_heads > kWidthMax) refuse("columns in a matrix", of_heads, kWidthMax);
}

ParameterNames usual_names() {
  ParameterNames names;
  const auto set = [&names](ParameterKind kind, const char* name) {
    names.at(static_cast<std::size_t>(kind)).name = name;
  };
  set(ParameterKind::kTokenEmbedding, "model.embed_tokens.weight");
  set(ParameterKind::kQuery, "model.layers.{}.self_attn.q_proj.weight");
  set(ParameterKind::kKey, "model.layers.{}.self_attn.k_proj.weight");
  set(ParameterKind::kValue, "model.layers.{}.self_attn.v_proj.weight");
  set(ParameterKind::kProjection, "model.layers.{}.self_attn.o_proj.weight");
  set(ParameterKind::kGate, "model.layers.{}.mlp.gate_proj.weight");
  set(ParameterKind::kUp, "model.layers.{}.mlp.up_proj.weight");
  set(ParameterKind::kDown, "model.layers.{}.mlp.down_proj.weight");
  set(ParameterKind::kRouter, "model.layers.{}.mlp.gate.weight");
  set(ParameterKind::kExpertGate, "model.layers.{}.mlp.experts.{}.gate_proj.weight");
  set(ParameterKind::kExpertUp, "model.layers.{}.mlp.experts.{}.up_proj.weight");
  set(ParameterKind::kExpertDown, "model.layers.{}.mlp.experts.{}.down_proj.weight");
  set(ParameterKind::kHeadWeight, "lm_head.weight");
  set(ParameterKind::kQueryBias, "model.layers.{}.self_attn.q_proj.bias");
  set(ParameterKind::kKeyBias, "model.layers.{}.self_attn.k_proj.bias");
  set(ParameterKind::kValueBias, "model.layers.{}.self_attn.v_proj.bias");
  set(ParameterKind::kProjectionBias, "model.layers.{}.self_attn.o_proj.bias");
  set(ParameterKind::kGateBias, "model.layers.{}.mlp.gate_proj.bias");
  set(ParameterKind::kUpBias, "model.layers.{}.mlp.up_proj.bias");
  set(ParameterKind::kDownBias, "model.layers.{}.mlp.down_proj.bias");
  set(ParameterKind::kQueryNorm, "model.layers.{}.self_attn.q_norm.weight");
  set(ParameterKind::kKeyNorm, "model.layers.{}.self_attn.k_norm.weight");
  set(ParameterKind::kAttentionNorm, "model.layers.{}.input_layernorm.weight");
  set(ParameterKind::kFeedForwardNorm, "model.layers.{}.post_attention_layernorm.weight");
  set(ParameterKind::kFinalNorm, "model.norm.weight");
  return names;
}

void set_name(ModelConfig& config, ParameterKind kind, const std::string& name) {
  config.names.at(static_cast<std::size_t>(kind)).name = "model.layers.{}." + name;
}

void set_shared_expert(ModelConfig& config, const std::string& module) {
  constexpr auto kMatrices = std::to_array<std::string_view>({"gate", "up", "down"});
  for (std::size_t i = 0; i < kMatrices.size(); ++i) {
    config.shared_expert_names.at(i).name =
        fmt::format("model.layers.{{}}.{}.{}_proj.weight", module, kMatrices.at(i));
  }
}

bool is_tanh_gelu(const std::string& name) {
  constexpr auto kNames = std::to_array<std::string_view>(
      {"gelu_new", "gelu_pytorch_tanh", "gelu_python_tanh", "gelu_fast"});
  return std::ranges::find(kNames, name) != kNames.end();
}

void read_attention_bias(const ConfigReader& keys, ModelConfig& config) {
  config.has_qkv_bias = keys.flag("attention_bias", false);
  config.has_projection_bias = config.has_qkv_bias;
}

void read_feed_forward_bias(const ConfigReader& keys, ModelConfig& config) {
  config.has_feed_forward_bias = keys.flag("mlp_bias", false);
}

std::int64_t read_rotary_width(const ConfigReader& keys, std::int64_t head_width, double fallback) {
  constexpr const char* kPartKey = "partial_rotary_factor";
  double part = keys.number(kPartKey, fallback);
  for (const char* rope : {"rope_parameters", "rope_scaling"}) {
    const std::optional<ConfigReader> object = keys.object(rope);
    if (object.has_value()) part = object->number(kPartKey, part);
  }
  if (part > 1) keys.refuse(kPartKey, "is more than a whole head");
  const auto width = static_cast<std::int64_t>(static_cast<double>(head_width) * part);
  if (width == 0 || width % 2 != 0) {
    keys.refuse(kPartKey, fmt::format("rotates {} of a head's {} elements, but only whole pairs "
                                      "can be rotated",
                                      width, head_width));
  }
  return width;
}

void read_multipliers(const ConfigReader& keys, ModelConfig& config) {
  const auto multiplier = [&keys](const char* key) { return keys.number(key, 1.0); };
  config.embedding_scale = static_cast<float>(multiplier("embedding_multiplier"));
  // Where the key is absent this is 1, too, and does not depend on the head's width.
  config.score_scale = static_cast<float>(multiplier("attention_multiplier"));
  config.residual_scale = static_cast<float>(multiplier("residual_multiplier"));
  config.logit_scale = static_cast<float>(1 / multiplier("logits_scaling"));
}

void read_one_rope(const ConfigReader& keys, ModelConfig& config, RopeDefaults defaults) {
  defaults.positions = config.positions;
  defaults.rotary_width = config.rotated_width();
  config.ropes = {read_rope(keys, defaults)};
  config.layer_options.assign(static_cast<std::size_t>(config.layers), LayerOptions{.rope = 0});
}

void read_experts(const ConfigReader& keys, ModelConfig& config, const ExpertDefaults& defaults) {
  constexpr std::int64_t kExpertsMax = 4096;
  const char* const count_key = defaults.count_key;
  const char* const alias = defaults.alias;
  constexpr const char* kChosen = "num_experts_per_tok";
  for (const char* key : {count_key, alias, kChosen}) refuse_null(keys, key);
  const bool is_named = keys.has(count_key) || keys.has(alias);
  config.experts.count = is_named ? keys.count_of(count_key, alias) : defaults.count;
  if (config.experts.count > kExpertsMax) {
    keys.wrong(keys.has(count_key) ? count_key : alias, fmt::format("at most {}", kExpertsMax));
  }
  config.experts.per_row = keys.count(kChosen, defaults.per_row);
  if (config.experts.per_row > config.experts.count) {
    keys.wrong(kChosen, fmt::format("at most the {} experts of a layer", config.experts.count));
  }
  constexpr const char* kCoefficient = "router_aux_loss_coef";
  const bool asks = keys.flag("output_router_logits", false);
  if (!asks || defaults.balance_coefficient == 0) return;
  refuse_null(keys, kCoefficient);
  config.experts.balance_coefficient = keys.number(kCoefficient, defaults.balance_coefficient);
}

void read_sparse_layers(const ConfigReader& keys, ModelConfig& config) {
  const std::int64_t step = keys.count("decoder_sparse_step", 1);
  for (std::size_t i = 0; i < config.layer_options.size(); ++i) {
    config.layer_options[i].has_experts = (static_cast<std::int64_t>(i) + 1) % step == 0;
  }
  if (!keys.has("mlp_only_layers")) return;
  for (const double number : keys.numbers("mlp_only_layers")) {
    const bool is_layer = number >= 0 && number < static_cast<double>(config.layers);
    if (!is_layer || number != std::floor(number)) {
      keys.wrong("mlp_only_layers",
                 fmt::format("a list of layers' numbers, below {}", config.layers));
    }
    config.layer_options[static_cast<std::size_t>(number)].has_experts = false;
  }
}

void refuse_null(const ConfigReader& keys, const std::string& key) {
  if (keys.names(key) && !keys.has(key)) keys.wrong(key, "a number");
}

// --- windows -------------------------------------------------------------------------------------

std::int64_t read_window(const ConfigReader& keys, std::int64_t fallback) {
  return keys.count("sliding_window", keys.names("sliding_window") ? 0 : fallback);
}

void set_window(ModelConfig& config, std::int64_t window) {
  for (LayerOptions& layer : config.layer_options) layer.window = window;
}

void read_layer_types(const ConfigReader& keys, ModelConfig& config, std::int64_t window,
                      const std::function<bool(std::int64_t)>& is_sliding) {
  constexpr const char* kKey = "layer_types";
  const std::vector<std::string> types = keys.texts(kKey);
  if (keys.has(kKey) && types.size() != config.layer_options.size()) {
    keys.wrong(kKey, fmt::format("a name for each of {} layers", config.layers));
  }
  for (const std::string& type : types) {
    if (type == "full_attention" || type == "sliding_attention") continue;
    keys.refuse(kKey, fmt::format("names {}, which is not built; use full_attention or "
                                  "sliding_attention",
                                  type));
  }
  for (std::size_t i = 0; i < config.layer_options.size(); ++i) {
    const bool slides =
        types.empty() ? is_sliding(static_cast<std::int64_t>(i)) : types[i] == "sliding_attention";
    if (!slides) continue;
    if (window == 0) {
      keys.wrong(kKey,
                 "a list without sliding_attention, because no sliding_window is set or used");
    }
    config.layer_options[i].window = window;
  }
}

void read_upper_windows(const ConfigReader& keys, ModelConfig& config) {
  const bool is_used = keys.flag("use_sliding_window", false);
  const std::int64_t window = is_used ? read_window(keys, 4096) : 0;
  const std::int64_t first = keys.integer("max_window_layers", 28);
  read_layer_types(keys, config, window,
                   [=](std::int64_t layer) { return window != 0 && layer >= first; });
}

}  // namespace terrace
