#include "runtime/checkpoint/adapter_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/error.h"
#include "base/json_depth.h"

namespace terrace {
namespace {

using nlohmann::json;

// The keys that are read, and the keys that do not change what is computed with the tensors of the
// file. The tensors also tell the layers.
constexpr auto kAdapterKeys = std::to_array<std::string_view>({
    "peft_type",
    "r",
    "lora_alpha",
    "lora_dropout",
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
  AdapterKeys(const json& keys, const std::string& origin) : keys_(keys), origin_(origin) {}

  [[noreturn]] void refuse(std::string_view key, const std::string& why) const {
    throw ConfigError(fmt::format("{}: {} {}{}", origin_, key,
                                  keys_.contains(key) ? keys_.at(key).dump() + " " : "", why),
                      kAdapterRemedy);
  }
  double number(const char* key, double least) const {
    if (!keys_.contains(key) || !keys_.at(key).is_number()) refuse(key, "is not a number");
    const auto value = keys_.at(key).get<double>();
    if (!std::isfinite(value) || value < least) refuse(key, fmt::format("is below {}", least));
    return value;
  }
  bool is_nothing(const char* key) const {
    if (!keys_.contains(key)) return true;
    const json& value = keys_.at(key);
    return value.is_null() || value == false ||
           (value.is_string() && value.get<std::string>().empty()) ||
           (value.is_structured() && value.empty());
  }
  bool flag(const char* key) const {
    if (is_nothing(key)) return false;
    if (keys_.at(key) != true) refuse(key, "is neither true nor false");
    return true;
  }
  std::string text(const char* key) const {
    if (is_nothing(key)) return "";
    if (!keys_.at(key).is_string()) refuse(key, "is not a string");
    return keys_.at(key).get<std::string>();
  }

 private:
  const json& keys_;
  const std::string& origin_;
};

std::int64_t read_rank(const AdapterKeys& keys) {
  constexpr double kMost = 1 << 24;
  const double rank = keys.number("r", 1);
  if (rank > kMost || rank != std::floor(rank)) keys.refuse("r", "is not a valid rank");
  return static_cast<std::int64_t>(rank);
}

// Refuses initialisations that change the base model too.
void check_start(const AdapterKeys& keys, const json& all) {
  constexpr const char* kKey = "init_lora_weights";
  if (!all.contains(kKey)) return;
  const json& value = all.at(kKey);
  const bool is_plain = value.is_boolean() || value.is_null() || value == "gaussian" ||
                        value == "orthogonal" || value == "eva";
  if (!is_plain) keys.refuse(kKey, "is not built: it changes the weights of the base model");
}

}  // namespace

AdapterConfig parse_adapter_config(const std::string& text, const std::string& origin) {
  json all;
  if (!nests_deeper(text)) all = json::parse(text, nullptr, false);
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
  config.options.rank = read_rank(keys);
  config.options.alpha = keys.number("lora_alpha", 0);
  config.options.is_rank_stabilized = keys.flag("use_rslora");
  config.options.has_magnitudes = keys.flag("use_dora");
  config.dropout = keys.is_nothing("lora_dropout") ? 0 : keys.number("lora_dropout", 0);
  config.base_model = keys.text("base_model_name_or_path");
  config.is_fan_in_fan_out = keys.flag("fan_in_fan_out");
  return config;
}

std::string to_json(const AdapterConfig& config) {
  const AdapterOptions& options = config.options;
  const bool is_whole = options.alpha == std::floor(options.alpha) && options.alpha < 1e15;
  json keys = {
      {"alpha_pattern", json::object()},
      {"auto_mapping", nullptr},
      {"base_model_name_or_path", config.base_model},
      {"bias", "none"},
      {"fan_in_fan_out", config.is_fan_in_fan_out},
      {"inference_mode", true},
      {"init_lora_weights", true},
      {"layers_pattern", nullptr},
      {"layers_to_transform", nullptr},
      {"lora_dropout", 0.0},
      {"modules_to_save", nullptr},
      {"peft_type", "LORA"},
      {"r", options.rank},
      {"rank_pattern", json::object()},
      {"revision", nullptr},
      {"target_modules", options.targets},
      {"task_type", "CAUSAL_LM"},
      {"use_dora", options.has_magnitudes},
      {"use_rslora", options.is_rank_stabilized},
  };
  if (is_whole) {
    keys["lora_alpha"] = static_cast<std::int64_t>(options.alpha);
  } else {
    keys["lora_alpha"] = options.alpha;
  }
  return keys.dump(2) + "\n";
}

}  // namespace terrace
