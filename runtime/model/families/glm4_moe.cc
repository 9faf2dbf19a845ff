#include <fmt/format.h>

#include <array>

#include "runtime/model/families/family_keys.h"

// GLM-4.5 (GLM-4.5 Team 2025, arXiv:2508.06471): llama with experts that are chosen by biased
// sigmoids, and one expert that all tokens have. Keys and names follow transformers' Glm4MoeConfig
// and Glm4MoeForCausalLM.
namespace terrace {
namespace {

constexpr auto kArchitectures =
    std::to_array<std::string_view>({"Glm4MoeForCausalLM", "Glm4MoeModel"});

constexpr auto kKeys = with_usual_keys({
    {"hidden_act"},
    {"attention_bias"},
    {"use_qk_norm"},
    {"n_routed_experts"},
    {"num_local_experts"},
    {"num_experts_per_tok"},
    {"moe_intermediate_size"},
    {"n_shared_experts"},
    {"n_group"},
    {"topk_group"},
    {"norm_topk_prob"},
    {"routed_scaling_factor"},
    {"first_k_dense_replace"},
    {"output_router_logits"},      // about results; the class has no balance loss
    {"num_nextn_predict_layers"},  // layers that guess further tokens: neither read nor trained
    {"num_mtp_layers"},            // another name of it
});

// Reads the groups of experts, of which a token has the experts of some.
void read_groups(const ConfigReader& keys, ModelConfig& config) {
  constexpr const char* kGroups = "n_group";
  constexpr const char* kChosen = "topk_group";
  const ExpertOptions& experts = config.experts;
  const std::int64_t groups = keys.count(kGroups, 1);
  const std::int64_t chosen = keys.count(kChosen, 1);
  if (groups > ExpertRule::kGroupsMax) {
    keys.refuse(kGroups,
                fmt::format("is more than the {} groups that are built", ExpertRule::kGroupsMax));
  }
  if (experts.count % groups != 0 || experts.count / groups < 2) {
    keys.wrong(kGroups, fmt::format("a number of equal groups of {} experts, two in each at least",
                                    experts.count));
  }
  if (chosen > groups || chosen * (experts.count / groups) < experts.per_row) {
    keys.wrong(kChosen,
               fmt::format("at most the {} groups, which have {} experts together at least", groups,
                           experts.per_row));
  }
  config.experts.rule.groups = static_cast<std::int32_t>(groups);
  config.experts.rule.chosen_groups = static_cast<std::int32_t>(chosen);
}

void read_choice(const ConfigReader& keys, ModelConfig& config) {
  read_experts(keys, config,
               {.count = 128,
                .per_row = 8,
                .balance_coefficient = 0,
                .count_key = "n_routed_experts",
                .alias = "num_local_experts"});
  ExpertRule& rule = config.experts.rule;
  rule.scores = ExpertScores::kSigmoid;
  rule.normalizes = keys.flag("norm_topk_prob", true);
  rule.scale = static_cast<float>(keys.number("routed_scaling_factor", 1.0));
  config.experts.has_choice_bias = true;
  read_groups(keys, config);
}

void set_names(ModelConfig& config) {
  set_name(config, ParameterKind::kChoiceBias, "mlp.gate.e_score_correction_bias");
  set_shared_expert(config, "mlp.shared_experts");
}

void read(const ConfigReader& keys, ModelConfig& config) {
  read_usual(keys, config,
             {.positions = 131072,
              .key_value_heads = 8,
              .takes_null_key_value_heads = false,
              .epsilon = 1e-5});
  refuse_null(keys, "partial_rotary_factor");
  config.rotary_width = read_rotary_width(keys, config.head_width, 0.5);
  read_one_rope(keys, config, {.may_be_partial = true});
  config.has_qkv_bias = keys.flag("attention_bias", false);
  const bool has_norms = keys.flag("use_qk_norm", false);
  config.query_key_norms = has_norms ? QueryKeyNorms::kEachHead : QueryKeyNorms::kNone;
  read_choice(keys, config);
  config.experts.intermediate = keys.count("moe_intermediate_size", 1408);
  config.experts.shared_intermediate =
      config.experts.intermediate * keys.count("n_shared_experts", 1);
  const std::int64_t first = keys.integer("first_k_dense_replace", 1);
  for (std::int64_t i = 0; i < config.layers; ++i) {
    config.layer_options[static_cast<std::size_t>(i)].has_experts = i >= first;
  }
  set_names(config);
}

}  // namespace

const Family kGlm4MoeFamily = {"glm4_moe", kArchitectures, kKeys, read};

}  // namespace terrace
