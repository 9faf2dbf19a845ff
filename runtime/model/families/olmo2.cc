#include <array>

#include "runtime/model/families/family_keys.h"

// OLMo 2 (OLMo team 2024, arXiv:2501.00656): llama whose norms stand after attention and
// feed-forward, with norms of the whole query and key. Keys and names follow transformers'
// Olmo2Config and Olmo2ForCausalLM.
namespace terrace {
namespace {

constexpr auto kArchitectures = std::to_array<std::string_view>({"Olmo2ForCausalLM", "Olmo2Model"});

constexpr auto kKeys = with_usual_keys({
    {"hidden_act"},
    {"attention_bias"},
});

void read(const ConfigReader& keys, ModelConfig& config) {
  read_usual(keys, config, {.positions = 2048, .epsilon = 1e-5, .padding_token = 1});
  read_attention_bias(keys, config);
  read_one_rope(keys, config);
  config.norm.form = RmsNormForm::kMultiplyThenRound;
  config.norm_places = NormPlaces::kAfter;
  config.query_key_norms = QueryKeyNorms::kWholeWidth;
  set_name(config, ParameterKind::kAttentionOutNorm, "post_attention_layernorm.weight");
  set_name(config, ParameterKind::kFeedForwardOutNorm, "post_feedforward_layernorm.weight");
}

}  // namespace

const Family kOlmo2Family = {"olmo2", kArchitectures, kKeys, read};

}  // namespace terrace
