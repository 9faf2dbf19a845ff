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

// Returns the stored names of matrices that no adapter can have: routers and the matrices of
// experts.
std::vector<std::string> weights_of_experts(const ModelConfig& config) {
  std::vector<std::string> names;
  for (const UnitLayout& unit : parameter_layout(config)) {
    for (const ParameterTensor& tensor : unit.tensors) {
      const bool is_one = tensor.kind == ParameterKind::kRouter || is_of_expert(tensor.kind);
      if (is_one) names.push_back(tensor.stored_name);
    }
  }
  return names;
}

std::string last_part(const std::string& weight) {
  const std::string module(module_of(weight));
  return module.substr(module.rfind('.') + 1);
}

// Returns patterns of the layers that can be adapted: the last parts of their names, with the part
// before where a matrix of experts has the same one.
std::set<std::string> target_names(const std::vector<std::string>& all,
                                   const std::vector<std::string>& of_experts) {
  std::set<std::string> names;
  for (const std::string& weight : all) {
    const std::string last = last_part(weight);
    const bool is_shared = std::ranges::any_of(
        of_experts, [&](const std::string& other) { return last_part(other) == last; });
    const std::string before(
        module_of(weight).substr(0, module_of(weight).size() - last.size() - 1));
    names.insert(is_shared ? fmt::format("{}.{}", last_part(before), last) : last);
  }
  return names;
}

// Throws ConfigError for a pattern that matches a router or a matrix of an expert.
void refuse_experts(const ModelConfig& config, const std::string& pattern,
                    const std::vector<std::string>& all,
                    const std::vector<std::string>& of_experts) {
  for (const std::string& weight : of_experts) {
    if (!matches_target(pattern, weight)) continue;
    throw ConfigError(
        fmt::format("--lora-targets {} matches {} of {}, and adapters of experts and of routers "
                    "are not built",
                    pattern, module_of(weight), config.name.empty() ? "the model" : config.name),
        fmt::format("give {}; experts and routers stay frozen",
                    fmt::join(target_names(all, of_experts), ", ")));
  }
}

// Throws ConfigError where matrices of experts train whole beside the adapter.
void refuse_whole_experts(const AdapterOptions& adapter,
                          const std::vector<std::string>& of_experts) {
  for (const std::string& weight : of_experts) {
    if (!adapter.trains_whole(weight)) continue;
    throw ConfigError(fmt::format("--trainable trains {} beside an adapter, and experts and "
                                  "routers that train beside an adapter are not built",
                                  module_of(weight)),
                      "leave experts and routers out of --trainable, or leave --lora-rank out");
  }
}

}  // namespace

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
  // The last parts alone must not name experts, which some programs have as linear layers.
  std::vector<std::string> all = adaptable_weights(config);
  const std::vector<std::string> of_experts = weights_of_experts(config);
  all.insert(all.end(), of_experts.begin(), of_experts.end());
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
  config.adapter = {};
  const std::vector<std::string> all = adaptable_weights(config);
  const std::vector<std::string> of_experts = weights_of_experts(config);
  refuse_whole_experts(adapter, of_experts);
  const bool takes_all = patterns.empty() || patterns == std::vector<std::string>{kAllLinear};
  std::set<std::string> chosen;
  for (const std::string& weight : all) {
    if (takes_all && !adapter.trains_whole(weight)) chosen.insert(weight);
  }
  if (takes_all && chosen.empty()) {
    throw ConfigError(
        "--trainable trains all linear layers of the blocks whole, so that the "
        "adapter has no layer",
        "leave --lora-rank out, or give --trainable fewer layers");
  }
  for (const std::string& pattern : patterns) {
    if (takes_all) break;
    refuse_experts(config, pattern, all, of_experts);
    bool matches = false;
    for (const std::string& weight : all) {
      if (!matches_target(pattern, weight)) continue;
      if (adapter.trains_whole(weight)) throw twice_trained(pattern, weight);
      chosen.insert(weight);
      matches = true;
    }
    if (matches) continue;
    throw ConfigError(
        fmt::format("--lora-targets {} matches no linear layer in the blocks of {}", pattern,
                    config.name),
        fmt::format("give {}, or names and patterns such as {}",
                    fmt::join(target_names(all, of_experts), ", "), module_of(all.front())));
  }
  adapter.targets = targets_of(config, chosen);
  config.adapter = std::move(adapter);
  return config;
}

}  // namespace terrace
