#include "runtime/checkpoint/adapter_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/error.h"
#include "base/json_depth.h"
#include "runtime/config/train_options.h"

namespace terrace {
namespace {

using nlohmann::ordered_json;  // keeps the order of patterns: the first that matches counts

// The keys that are read, and the keys that do not change what is computed with the tensors of the
// file. The tensors also tell the layers.
constexpr auto kAdapterKeys = std::to_array<std::string_view>({
    "peft_type",
    "r",
    "lora_alpha",
    "lora_dropout",
    "rank_pattern",
    "alpha_pattern",
    "modules_to_save",
    "ensure_weight_tying",
    "use_rslora",
    "bias",
    "use_dora",
    "target_modules",
    "exclude_modules",
    "fan_in_fan_out",
    "base_model_name_or_path",
    "task_type",
    "inference_mode",
    "revision",
    "peft_version",
    "auto_mapping",
    "init_lora_weights",
    "layers_pattern",
    "megatron_core",
    "runtime_config",
    "qalora_group_size",  // of use_qalora
});

constexpr const char* kAdapterRemedy =
    "train it without that, or merge it into its base with PEFT (merge_and_unload) and train the "
    "result";

class AdapterKeys {
 public:
  AdapterKeys(const ordered_json& keys, const std::string& origin) : keys_(keys), origin_(origin) {}

  [[noreturn]] void refuse(std::string_view key, const std::string& why) const {
    throw ConfigError(fmt::format("{}: {} {}{}", origin_, key,
                                  keys_.contains(key) ? keys_.at(key).dump() + " " : "", why),
                      kAdapterRemedy);
  }
  double number(const char* key, double least) const {
    return number_in(keys_.contains(key) ? keys_.at(key) : ordered_json(), key, least);
  }
  // Returns a number from 0 to `most`; 0 where the key is absent.
  double probability(const char* key, double most) const {
    if (is_nothing(key)) return 0;
    const ordered_json& value = keys_.at(key);
    const double number = value.is_number() ? value.get<double>() : -1;
    if (!(0 <= number && number <= most)) refuse(key, fmt::format("is not from 0 to {}", most));
    return number;
  }
  std::int64_t rank_in(const ordered_json& value, const char* key) const {
    constexpr double kMost = 1 << 24;
    const double rank = number_in(value, key, 1);
    if (rank > kMost || rank != std::floor(rank)) refuse(key, "is not a valid rank");
    return static_cast<std::int64_t>(rank);
  }
  std::int64_t rank(const char* key) const {
    return rank_in(keys_.contains(key) ? keys_.at(key) : ordered_json(), key);
  }
  // Return the entries of an object from patterns of modules to ranks, and to alphas.
  std::vector<LayerPattern<std::int64_t>> rank_patterns(const char* key) const {
    std::vector<LayerPattern<std::int64_t>> patterns;
    const ordered_json entries = object(key);
    for (const auto& [pattern, value] : entries.items()) {
      patterns.push_back({pattern, rank_in(value, key)});
    }
    return patterns;
  }
  std::vector<LayerPattern<double>> alpha_patterns(const char* key) const {
    std::vector<LayerPattern<double>> patterns;
    const ordered_json entries = object(key);
    for (const auto& [pattern, value] : entries.items()) {
      patterns.push_back({pattern, number_in(value, key, 0)});
    }
    return patterns;
  }
  bool is_nothing(const char* key) const {
    if (!keys_.contains(key)) return true;
    const ordered_json& value = keys_.at(key);
    return value.is_null() || value == false ||
           (value.is_string() && value.get<std::string>().empty()) ||
           (value.is_structured() && value.empty());
  }
  bool flag(const char* key) const {
    if (is_nothing(key)) return false;
    if (keys_.at(key) != true) refuse(key, "is neither true nor false");
    return true;
  }
  // Returns the strings of a list, none of which is empty.
  std::vector<std::string> texts(const char* key) const {
    std::vector<std::string> texts;
    if (is_nothing(key)) return texts;
    if (!keys_.at(key).is_array()) refuse(key, "is not a list");
    for (const ordered_json& value : keys_.at(key)) {
      if (!value.is_string() || value.get<std::string>().empty()) refuse(key, "has no name in it");
      texts.push_back(value.get<std::string>());
    }
    return texts;
  }
  std::string text(const char* key) const {
    if (is_nothing(key)) return "";
    if (!keys_.at(key).is_string()) refuse(key, "is not a string");
    return keys_.at(key).get<std::string>();
  }

 private:
  // Reads a number that is the key's value or a part of it.
  double number_in(const ordered_json& value, const char* key, double least) const {
    if (!value.is_number()) refuse(key, "is not a number");
    const auto number = value.get<double>();
    if (!std::isfinite(number) || number < least) refuse(key, fmt::format("is below {}", least));
    return number;
  }
  ordered_json object(const char* key) const {
    if (is_nothing(key)) return ordered_json::object();
    if (!keys_.at(key).is_object()) refuse(key, "is not an object");
    return keys_.at(key);
  }

  const ordered_json& keys_;
  const std::string& origin_;
};

// Refuses initialisations that change the base model too.
void check_start(const AdapterKeys& keys, const ordered_json& all) {
  constexpr const char* kKey = "init_lora_weights";
  if (!all.contains(kKey)) return;
  const ordered_json& value = all.at(kKey);
  const bool is_plain = value.is_boolean() || value.is_null() || value == "gaussian" ||
                        value == "orthogonal" || value == "eva";
  if (!is_plain) keys.refuse(kKey, "is not built: it changes the weights of the base model");
}

}  // namespace

AdapterConfig parse_adapter_config(const std::string& text, const std::string& origin) {
  ordered_json all;
  if (!nests_deeper(text)) all = ordered_json::parse(text, nullptr, false);
  if (!all.is_object()) {
    throw ConfigError(fmt::format("{} is not a JSON object", origin), "fetch the adapter again");
  }
  const AdapterKeys keys(all, origin);
  if (keys.text("peft_type") != "LORA") keys.refuse("peft_type", "is not built; only \"LORA\" is");
  for (const auto& [key, value] : all.items()) {
    const bool is_known = std::ranges::find(kAdapterKeys, key) != kAdapterKeys.end();
    if (!is_known && !keys.is_nothing(key.c_str())) keys.refuse(key, "is not built");
  }
  const std::string bias = keys.text("bias");
  if (bias != "none" && !bias.empty()) keys.refuse("bias", "is not built; only \"none\" is");
  check_start(keys, all);
  AdapterConfig config;
  config.options.rank = keys.rank("r");
  config.options.alpha = keys.number("lora_alpha", 0);
  config.options.rank_patterns = keys.rank_patterns("rank_pattern");
  config.options.alpha_patterns = keys.alpha_patterns("alpha_pattern");
  config.options.whole_modules = keys.texts("modules_to_save");
  config.options.is_rank_stabilized = keys.flag("use_rslora");
  config.options.has_magnitudes = keys.flag("use_dora");
  config.options.dropout = keys.probability("lora_dropout", kDropoutMost);
  config.base_model = keys.text("base_model_name_or_path");
  config.is_fan_in_fan_out = keys.flag("fan_in_fan_out");
  return config;
}

namespace {

// Returns a number as Python writes it: a whole one without a point.
ordered_json number_of(double value) {
  if (value == std::floor(value) && value < 1e15) return static_cast<std::int64_t>(value);
  return value;
}

template <typename Value>
ordered_json object_of(const std::vector<LayerPattern<Value>>& patterns) {
  ordered_json object = ordered_json::object();
  for (const auto& [pattern, value] : patterns) {
    object[pattern] = number_of(static_cast<double>(value));
  }
  return object;
}

}  // namespace

std::string to_json(const AdapterConfig& config) {
  const AdapterOptions& options = config.options;
  ordered_json keys = {
      {"alpha_pattern", object_of(options.alpha_patterns)},
      {"auto_mapping", nullptr},
      {"base_model_name_or_path", config.base_model},
      {"bias", "none"},
      {"fan_in_fan_out", config.is_fan_in_fan_out},
      {"inference_mode", true},
      {"init_lora_weights", true},
      {"layers_pattern", nullptr},
      {"layers_to_transform", nullptr},
      {"lora_alpha", number_of(options.alpha)},
      {"lora_dropout", number_of(options.dropout)},
      {"modules_to_save", nullptr},
      {"peft_type", "LORA"},
      {"r", options.rank},
      {"rank_pattern", object_of(options.rank_patterns)},
      {"revision", nullptr},
      {"target_modules", options.targets},
      {"task_type", "CAUSAL_LM"},
      {"use_dora", options.has_magnitudes},
      {"use_rslora", options.is_rank_stabilized},
  };
  const std::vector<std::string>& whole = options.whole_modules;
  if (!whole.empty()) keys["modules_to_save"] = whole;
  if (config.ties_head) keys["ensure_weight_tying"] = true;
  return keys.dump(2) + "\n";
}

}  // namespace terrace
