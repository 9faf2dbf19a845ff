#include <array>

#include "runtime/model/families/family_keys.h"
#include "runtime/model/families/gemma.h"

// Gemma 2 (Gemma team 2024, arXiv:2408.00118): caps of scores and logits; every second layer has a
// window. Keys and names follow transformers' Gemma2Config and Gemma2ForCausalLM.
namespace terrace {
namespace {

constexpr auto kArchitectures =
    std::to_array<std::string_view>({"Gemma2ForCausalLM", "Gemma2Model"});

constexpr auto kKeys = with_usual_keys({
    {"hidden_activation"},
    {"hidden_act", "\"gelu_pytorch_tanh\""},  // hidden_activation is read
    {"attention_bias"},
    {"query_pre_attn_scalar"},
    {"attn_logit_softcapping"},
    {"final_logit_softcapping"},
    {"sliding_window"},
    {"layer_types"},
});

void read(const ConfigReader& keys, ModelConfig& config) {
  read_gemma(keys, config, 8192);
  read_one_rope(keys, config);
  read_layer_types(keys, config, read_window(keys, 4096),
                   [](std::int64_t layer) { return layer % 2 == 0; });
  config.score_soft_cap = read_soft_cap(keys, "attn_logit_softcapping", 50);
  config.logit_soft_cap = read_soft_cap(keys, "final_logit_softcapping", 30);
}

}  // namespace

const Family kGemma2Family = {"gemma2", kArchitectures, kKeys, read};

}  // namespace terrace
