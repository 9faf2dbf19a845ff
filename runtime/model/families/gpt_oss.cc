#include <fmt/format.h>

#include <array>
#include <string>

#include "runtime/model/families/family_keys.h"

// gpt-oss (OpenAI 2025, arXiv:2508.10925): attention with sinks, a window in every second layer,
// and experts with biases and clamped gates. Keys and names follow transformers' GptOssConfig and
// GptOssForCausalLM.
namespace terrace {
namespace {

constexpr auto kArchitectures =
    std::to_array<std::string_view>({"GptOssForCausalLM", "GptOssModel"});

constexpr auto kKeys = with_usual_keys({
    {"hidden_act", R"("silu")"},  // names nothing: the gate is always the clamped one
    {"attention_bias"},
    {"sliding_window"},
    {"layer_types"},
    {"num_local_experts"},
    {"num_experts"},
    {"num_experts_per_tok"},
    {.name = "experts_per_token", .repeats = "num_experts_per_tok"},
    {"initial_context_length"},  // of other programs
    {"swiglu_alpha", "1.702"},   // kGateSlope
    {"swiglu_limit", "7.0"},     // kGateClamp
    {"output_router_logits"},
    {"router_aux_loss_coef"},  // of the balance loss, which output_router_logits asks for
});

// The class scales positions where config.json has no object for them.
void read_positions(const ConfigReader& keys, ModelConfig& config) {
  constexpr double kTheta = 150000;
  if (keys.has("rope_scaling") || keys.has("rope_parameters")) {
    return read_one_rope(keys, config, {.theta = kTheta});
  }
  constexpr const char* kOriginal = "original_max_position_embeddings";
  const std::string text =
      fmt::format(R"({{"rope_theta": {}, "rope_parameters": {{"rope_type": "yarn", "factor": 32.0,)"
                  R"( "beta_fast": 32.0, "beta_slow": 1.0, "truncate": false, "{}": {}}}}})",
                  keys.number("rope_theta", kTheta), kOriginal, keys.count(kOriginal, 4096));
  read_one_rope(ConfigReader(text, keys.origin()), config, {.theta = kTheta});
}

void set_names(ModelConfig& config) {
  const auto set = [&](ParameterKind kind, const std::string& name, const std::string& stored) {
    set_name(config, kind, name);
    config.names.at(static_cast<std::size_t>(kind)).stored =
        stored.empty() ? "" : "model.layers.{}.mlp.experts." + stored;
  };
  set(ParameterKind::kSinks, "self_attn.sinks", "");
  set(ParameterKind::kRouter, "mlp.router.weight", "");
  set(ParameterKind::kRouterBias, "mlp.router.bias", "");
  set(ParameterKind::kExpertGate, "mlp.experts.{}.gate_proj.weight", "gate_up_proj");
  set(ParameterKind::kExpertUp, "mlp.experts.{}.up_proj.weight", "gate_up_proj");
  set(ParameterKind::kExpertDown, "mlp.experts.{}.down_proj.weight", "down_proj");
  set(ParameterKind::kExpertGateBias, "mlp.experts.gate_proj.bias", "gate_up_proj_bias");
  set(ParameterKind::kExpertUpBias, "mlp.experts.up_proj.bias", "gate_up_proj_bias");
  set(ParameterKind::kExpertDownBias, "mlp.experts.down_proj.bias", "down_proj_bias");
}

void read(const ConfigReader& keys, ModelConfig& config) {
  read_usual(keys, config,
             {.positions = 131072,
              .key_value_heads = 8,
              .head_width = 64,
              .takes_null_head_width = true,
              .epsilon = 1e-5});
  read_positions(keys, config);
  config.norm.form = RmsNormForm::kMultiplyThenRound;
  config.has_qkv_bias = keys.flag("attention_bias", true);
  config.has_projection_bias = config.has_qkv_bias;
  config.has_sinks = true;
  read_layer_types(keys, config, read_window(keys, 128),
                   [](std::int64_t layer) { return layer % 2 == 0; });
  config.feed_forward = FeedForward::kClampedGate;
  read_experts(keys, config, {.count = 128, .per_row = 4});
  config.experts.intermediate = config.intermediate;
  config.experts.rule = {.normalizes = true, .rounds_weights = true};
  config.experts.has_bias = true;
  config.experts.storage = ExpertStorage::kInterleaved;
  for (LayerOptions& layer : config.layer_options) layer.has_experts = true;
  set_names(config);
}

}  // namespace

const Family kGptOssFamily = {"gpt_oss", kArchitectures, kKeys, read, "mxfp4"};

}  // namespace terrace
