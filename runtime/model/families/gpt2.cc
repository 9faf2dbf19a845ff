#include <fmt/format.h>

#include <array>
#include <string>

#include "runtime/model/families/family_keys.h"

// GPT-2 (Radford et al. 2019): layer norms, learned positions, biases everywhere, a tied head. Keys
// and names follow transformers' GPT2Config and GPT2LMHeadModel, whose Conv1D stores matrices as
// [in, out].
namespace terrace {
namespace {

constexpr auto kArchitectures = std::to_array<std::string_view>({"GPT2LMHeadModel", "GPT2Model"});

constexpr auto kKeys = std::to_array<KnownKey>({
    {"n_embd"},
    {"n_layer"},
    {"n_head"},
    {"n_positions"},
    {"n_inner"},
    {"hidden_size"},
    {"num_hidden_layers"},
    {"num_attention_heads"},
    {"max_position_embeddings"},
    {"layer_norm_epsilon"},
    {"activation_function"},
    {"scale_attn_weights"},
    {"scale_attn_by_inverse_layer_idx"},
    {"add_cross_attention"},
    {"reorder_and_upcast_attn"},  // the order of exact steps in narrow precision
    {"n_ctx"},                    // an older name of n_positions, which stands beside it
    {"summary_activation"},
    {"summary_first_dropout"},
    {"summary_proj_to_labels"},
    {"summary_type"},
    {"summary_use_proj"},
    {"n_special", "0"},
    {"output_past"},  // this and the next are of the first version of transformers
    {"predict_special_tokens"},
});

ParameterNames names() {
  ParameterNames names;
  const auto set = [&names](ParameterKind kind, const std::string& name) {
    names.at(static_cast<std::size_t>(kind)) = {name, "transformer." + name};
  };
  set(ParameterKind::kTokenEmbedding, "wte.weight");
  set(ParameterKind::kPositionEmbedding, "wpe.weight");
  set(ParameterKind::kQuery, "h.{}.attn.c_attn.weight");
  set(ParameterKind::kProjection, "h.{}.attn.c_proj.weight");
  set(ParameterKind::kUp, "h.{}.mlp.c_fc.weight");
  set(ParameterKind::kDown, "h.{}.mlp.c_proj.weight");
  set(ParameterKind::kQueryBias, "h.{}.attn.c_attn.bias");
  set(ParameterKind::kProjectionBias, "h.{}.attn.c_proj.bias");
  set(ParameterKind::kUpBias, "h.{}.mlp.c_fc.bias");
  set(ParameterKind::kDownBias, "h.{}.mlp.c_proj.bias");
  set(ParameterKind::kAttentionNorm, "h.{}.ln_1.weight");
  set(ParameterKind::kAttentionNormBias, "h.{}.ln_1.bias");
  set(ParameterKind::kFeedForwardNorm, "h.{}.ln_2.weight");
  set(ParameterKind::kFeedForwardNormBias, "h.{}.ln_2.bias");
  set(ParameterKind::kFinalNorm, "ln_f.weight");
  set(ParameterKind::kFinalNormBias, "ln_f.bias");
  names.at(static_cast<std::size_t>(ParameterKind::kHeadWeight)) = {"lm_head.weight", ""};
  return names;
}

void read(const ConfigReader& keys, ModelConfig& config) {
  config.width = keys.count_of("n_embd", "hidden_size");
  config.layers = keys.count_of("n_layer", "num_hidden_layers");
  config.heads = keys.count_of("n_head", "num_attention_heads");
  const bool has_positions = keys.has("n_positions") || keys.has("max_position_embeddings");
  config.positions = has_positions ? keys.count_of("n_positions", "max_position_embeddings") : 1024;
  config.vocabulary = keys.count("vocab_size");
  config.intermediate = keys.count("n_inner", 4 * config.width);
  config.key_value_heads = config.heads;
  if (config.width % config.heads != 0) {
    keys.refuse("n_embd", fmt::format("is not a multiple of n_head {}", config.heads));
  }
  config.head_width = config.width / config.heads;
  config.norm.epsilon = static_cast<float>(keys.number("layer_norm_epsilon", 1e-5));
  config.tied = keys.flag("tie_word_embeddings", true);
  if (!is_tanh_gelu(keys.text("activation_function", "gelu_new"))) {
    keys.refuse("activation_function", "is not built; use gelu_new or gelu_pytorch_tanh");
  }
  if (!keys.flag("scale_attn_weights", true)) keys.refuse("scale_attn_weights", "is not built");
  for (const char* key : {"scale_attn_by_inverse_layer_idx", "add_cross_attention"}) {
    if (keys.flag(key, false)) keys.refuse(key, "is not built");
  }
  check_sizes(config, keys.origin());
  config.names = names();
  config.norm.has_mean = true;
  config.feed_forward = FeedForward::kGelu;
  config.has_position_embedding = true;
  config.has_qkv_bias = true;
  config.has_projection_bias = config.has_qkv_bias;
  config.has_feed_forward_bias = true;
  config.stores_qkv_whole = true;
  config.stores_transposed = true;
  config.narrows_residual_init = true;
}

}  // namespace

const Family kGpt2Family = {"gpt2", kArchitectures, kKeys, read};

}  // namespace terrace
