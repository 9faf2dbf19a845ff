#include "runtime/model/adapter_targets.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "runtime/model/parameter_layout.h"
#include "runtime/model/trainable.h"

namespace terrace {
namespace {

bool matches_target(const std::string& pattern, const std::string& weight) {
  const std::string module(module_of(weight));
  return matches_name(pattern, weight) || matches_name(pattern, module) ||
         matches_pattern("*." + pattern, module);
}

template <typename Value>
std::string words_of(const char* what, const std::vector<LayerPattern<Value>>& patterns) {
  std::string words;
  for (const auto& [pattern, value] : patterns) {
    words += fmt::format(", {} {} for {}", what, value, pattern);
  }
  return words;
}

ConfigError twice_trained(const std::string& pattern, const std::string& weight) {
  return {fmt::format("--lora-targets {} matches {}, which --trainable trains whole", pattern,
                      module_of(weight)),
          "leave the layer out of one of the two"};
}

std::string last_part(const std::string& weight) {
  const std::string module(module_of(weight));
  return module.substr(module.rfind('.') + 1);
}

}  // namespace

void refuse_adapter_of_experts(const ModelConfig& config) {
  if (config.experts.count == 0) return;
  throw ConfigError(
      fmt::format("{} has layers of experts, and adapters of such models are not built",
                  config.name.empty() ? "the model" : config.name),
      "train it without an adapter, or choose tensors with --trainable");
}

std::vector<std::string> adaptable_weights(const ModelConfig& config) {
  std::vector<std::string> names;
  for (const UnitLayout& unit : parameter_layout(config)) {
    for (const ParameterTensor& tensor : unit.tensors) {
      const bool is_new = names.empty() || names.back() != tensor.stored_name;
      if (is_layer_weight(tensor.kind) && is_new) names.push_back(tensor.stored_name);
    }
  }
  return names;
}

std::vector<std::string> targets_of(const ModelConfig& config,
                                    const std::set<std::string>& weights) {
  std::set<std::string> ends;
  for (const std::string& weight : weights) ends.insert(last_part(weight));
  AdapterOptions by_ends;
  by_ends.targets.assign(ends.begin(), ends.end());
  const std::vector<std::string> all = adaptable_weights(config);
  const bool are_those = std::ranges::all_of(all, [&](const std::string& weight) {
    return by_ends.has_target(weight) == weights.contains(weight);
  });
  if (are_those) return by_ends.targets;
  std::vector<std::string> targets;
  for (const std::string& weight : weights) targets.emplace_back(module_of(weight));
  return targets;
}

std::string words_of(const AdapterOptions& adapter) {
  if (!adapter.is_there()) return "none";
  return fmt::format(
      "rank {}, alpha {}{}{}{}, layers {}{}{}{}", adapter.rank, adapter.alpha,
      adapter.is_rank_stabilized ? ", rank-stabilised" : "",
      adapter.has_magnitudes ? ", with magnitudes (dora)" : "",
      adapter.dropout > 0 ? fmt::format(", dropout {}", adapter.dropout) : "",
      fmt::join(adapter.targets, " "), words_of("rank", adapter.rank_patterns),
      words_of("alpha", adapter.alpha_patterns),
      adapter.whole_modules.empty()
          ? ""
          : fmt::format(", whole modules {}", fmt::join(adapter.whole_modules, " ")));
}

ModelConfig with_adapter(ModelConfig config, AdapterOptions adapter,
                         const std::vector<std::string>& patterns) {
  refuse_adapter_of_experts(config);
  config.adapter = {};
  const std::vector<std::string> all = adaptable_weights(config);
  std::set<std::string> chosen;
  for (const std::string& weight : all) {
    if (patterns.empty() && !adapter.trains_whole(weight)) chosen.insert(weight);
  }
  if (patterns.empty() && chosen.empty()) {
    throw ConfigError(
        "--trainable trains all linear layers of the blocks whole, so that the "
        "adapter has no layer",
        "leave --lora-rank out, or give --trainable fewer layers");
  }
  for (const std::string& pattern : patterns) {
    bool matches = false;
    for (const std::string& weight : all) {
      if (!matches_target(pattern, weight)) continue;
      if (adapter.trains_whole(weight)) throw twice_trained(pattern, weight);
      chosen.insert(weight);
      matches = true;
    }
    if (matches) continue;
    std::set<std::string> ends;
    for (const std::string& weight : all) ends.insert(last_part(weight));
    throw ConfigError(fmt::format("--lora-targets {} matches no linear layer in the blocks of {}",
                                  pattern, config.name),
                      fmt::format("give {}, or names and patterns such as {}",
                                  fmt::join(ends, ", "), module_of(all.front())));
  }
  adapter.targets = targets_of(config, chosen);
  config.adapter = std::move(adapter);
  return config;
}

}  // namespace terrace
