#include "runtime/model/config_keys.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <span>
#include <string_view>

#include "base/error.h"
#include "base/json_depth.h"
#include "base/nearest_name.h"
#include "runtime/model/json_text.h"

namespace terrace {
namespace {

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;

// The keys that every class of Hugging Face may have: names and versions, ids of special tokens,
// settings of generation and of classification heads, and how attention is implemented.
constexpr auto kOfAll = std::to_array<KnownKey>({
    {"architectures"},
    {"model_type"},
    {"quantization_config"},
    {"vocab_size"},
    {"initializer_range"},
    {"tie_word_embeddings"},
    {"attention_dropout"},
    {"attn_pdrop"},
    {"embd_pdrop"},
    {"resid_pdrop"},
    {"dropout", "0.0"},
    {"hidden_dropout", "0.0"},
    {"hidden_dropout_prob", "0.0"},
    {"resid_dropout", "0.0"},
    {"embedding_dropout", "0.0"},
    {"torch_dtype"},
    {"dtype"},
    {"transformers_version"},
    {"_name_or_path"},
    {"name_or_path"},
    {"_commit_hash"},
    {"_attn_implementation"},
    {"_attn_implementation_autoset"},
    {"_attn_implementation_internal"},
    {"attn_implementation"},
    {"_flash_attn_2_enabled"},
    {"use_flash_attention"},
    {"use_flash_attention_2"},
    {"use_flash_attn"},
    {"auto_map"},
    {"custom_pipelines"},
    {"transformers.js_config"},
    {"unsloth_fixed"},
    {"unsloth_version"},
    {"use_cache"},
    {"cache_implementation"},
    {"gradient_checkpointing"},
    {"keys_to_ignore_at_inference"},
    {"bos_token_id"},
    {"eos_token_id"},
    {"pad_token_id"},
    {"sep_token_id"},
    {"unk_token_id"},
    {"decoder_start_token_id"},
    {"tokenizer_class"},
    {"model_max_length"},
    {"max_sequence_length"},
    {"prefix"},
    {"task_specific_params"},
    {"finetuning_task"},
    {"problem_type"},
    {"num_labels"},
    {"_num_labels"},
    {"id2label"},
    {"label2id"},
    {"classifier_dropout"},
    {"return_dict"},
    {"use_return_dict"},
    {"output_attentions"},
    {"output_hidden_states"},
    {"output_scores"},
    {"return_dict_in_generate"},
    {"torchscript"},
    {"use_bfloat16"},
    {"tf_legacy_loss"},
    {"chunk_size_feed_forward"},
    {"is_decoder"},
    {"is_encoder_decoder", "false"},
    {"tie_encoder_decoder", "false"},
    {"use_sliding_window", "false"},
    {.name = "sliding_window_size", .repeats = "sliding_window"},
    {"use_bidirectional_attention"},
    {"is_causal"},
    {"pruned_heads", "{}"},
    {"neftune_noise_alpha", "0.0"},
    {"max_length"},
    {"min_length"},
    {"max_new_tokens"},
    {"do_sample"},
    {"early_stopping"},
    {"num_beams"},
    {"num_beam_groups"},
    {"diversity_penalty"},
    {"temperature"},
    {"top_k"},
    {"top_p"},
    {"typical_p"},
    {"repetition_penalty"},
    {"length_penalty"},
    {"no_repeat_ngram_size"},
    {"encoder_no_repeat_ngram_size"},
    {"bad_words_ids"},
    {"num_return_sequences"},
    {"forced_bos_token_id"},
    {"forced_eos_token_id"},
    {"remove_invalid_values"},
    {"exponential_decay_length_penalty"},
    {"suppress_tokens"},
    {"begin_suppress_tokens"},
});

constexpr std::string_view kOlderRope = "rope_scaling";
constexpr std::string_view kNewerRope = "rope_parameters";

// The keys inside rope_scaling and rope_parameters. transformers ignores those that a type does not
// use.
constexpr auto kOfRope = std::to_array<KnownKey>({
    {"rope_type"},
    {"type"},
    {"rope_theta"},
    {"factor"},
    {"low_freq_factor"},
    {"high_freq_factor"},
    {"original_max_position_embeddings"},
    {"partial_rotary_factor"},
    {"attention_factor"},
    {"attn_factor"},  // of other programs
    {"beta_fast"},
    {"beta_slow"},
    {"truncate"},
    {"mscale"},
    {"mscale_all_dim"},
    {"short_factor"},
    {"long_factor"},
    {"finetuned"},  // whether the model was trained with these numbers
});

// The types of layers that rope_parameters may have an object for.
constexpr auto kLayerTypes = std::to_array<KnownKey>({
    {"full_attention"},
    {"sliding_attention"},
});

// The keys that families with rope_parameters have beside it.
constexpr auto kBesideRope = std::to_array<KnownKey>({
    {"original_max_position_embeddings"},
});

const KnownKey* find(std::span<const KnownKey> keys, std::string_view name) {
  const auto found = std::ranges::find(keys, name, &KnownKey::name);
  return found == keys.end() ? nullptr : &*found;
}

// The keys of an object that are unknown, or not at their harmless values.
class StrangeKeys {
 public:
  // `whole`: the config.json.
  StrangeKeys(const std::string& origin, const Json& whole) : origin_(origin), whole_(whole) {}

  // Adds a key unless it is harmless. `name` begins with the object's name where the key is inside
  // an object.
  void add(const std::string& name, const Json& value, const KnownKey* known) {
    if (value.is_null() || (known == nullptr && value == false)) return;
    if (known != nullptr && is_harmless(value, *known)) return;
    std::string text = unquote_non_finite(value.dump());
    constexpr std::size_t kShown = 40;
    if (text.size() > kShown) text = text.substr(0, kShown) + "...";
    names_.push_back(name);
    told_.push_back(fmt::format("{} {}", name, text));
  }

  void refuse_any() const {
    if (names_.empty()) return;
    throw ConfigError(
        fmt::format("{}: {} may change what the model computes, but {} not known to Terrace",
                    origin_, fmt::join(told_, ", "), names_.size() == 1 ? "is" : "are"),
        fmt::format("if the model is the same without these keys, give --ignore-config-keys {}",
                    fmt::join(names_, " ")));
  }

 private:
  bool is_harmless(const Json& value, const KnownKey& known) const {
    if (!known.repeats.empty()) {
      const auto repeated = whole_.find(std::string(known.repeats));
      return repeated != whole_.end() && *repeated == value;
    }
    return known.harmless_at.empty() || value == Json::parse(known.harmless_at);
  }

  const std::string& origin_;
  const Json& whole_;
  std::vector<std::string> names_;
  std::vector<std::string> told_;  // with their values
};

// Returns the object that has the key; null where there is none. Cuts the names of the objects off
// the key.
OrderedJson* owner_of(OrderedJson& object, std::string& key) {
  if (object.contains(key)) return &object;
  const std::size_t dot = key.find('.');
  if (dot == std::string::npos) return nullptr;
  const auto inner = object.find(key.substr(0, dot));
  if (inner == object.end() || !inner->is_object()) return nullptr;
  key = key.substr(dot + 1);
  return owner_of(*inner, key);
}

// Adds the keys of `object`, which is called `name` and has rotary parameters.
void add_rope_keys(const std::string& name, const Json& object, StrangeKeys& strange) {
  for (const auto& [key, value] : object.items()) {
    const std::string inner = fmt::format("{}.{}", name, key);
    if (name == kNewerRope && value.is_object() && find(kLayerTypes, key) != nullptr) {
      add_rope_keys(inner, value, strange);
    } else {
      strange.add(inner, value, find(kOfRope, key));
    }
  }
}

}  // namespace

void check_config_keys(std::string_view json, std::span<const KnownKey> own,
                       const std::string& origin) {
  const Json object = Json::parse(quote_non_finite(json));
  StrangeKeys strange(origin, object);
  for (const auto& [name, value] : object.items()) {
    const KnownKey* known = find(own, name);
    const bool is_rope = known != nullptr && (name == kOlderRope || name == kNewerRope);
    if (known == nullptr) known = find(kOfAll, name);
    if (known == nullptr && find(own, kNewerRope) != nullptr) known = find(kBesideRope, name);
    strange.add(name, value, known);
    if (is_rope && value.is_object()) add_rope_keys(name, value, strange);
  }
  strange.refuse_any();
}

std::string without_keys(std::string_view json, const std::vector<std::string>& keys,
                         const std::string& origin) {
  // Text that cannot be read here is returned as it is: whoever reads it next says what is wrong.
  if (keys.empty() || nests_deeper(json)) return std::string(json);
  auto object = OrderedJson::parse(quote_non_finite(json), nullptr, /*allow_exceptions=*/false);
  if (!object.is_object()) return std::string(json);
  for (const std::string& key : keys) {
    std::string name = key;
    if (OrderedJson* const owner = owner_of(object, name); owner != nullptr) {
      owner->erase(name);
      continue;
    }
    std::vector<std::string_view> names;
    for (const auto& item : object.items()) names.push_back(item.key());
    throw ConfigError(fmt::format("--ignore-config-keys {}: {} has no such key", key, origin),
                      fmt::format("did you mean {}? A key inside rope_scaling is written "
                                  "rope_scaling.KEY",
                                  nearest_name(key, names)));
  }
  return unquote_non_finite(object.dump(2)) + "\n";
}

}  // namespace terrace
