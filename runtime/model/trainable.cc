#include "runtime/model/trainable.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/error.h"
#include "runtime/model/parameter_layout.h"

namespace terrace {
namespace {

constexpr std::array<std::string_view, 2> kPrefixes = {"transformer.", "model."};

// Returns the length of a set at the start of `pattern`, with its brackets; none where the set has
// no end, so that the bracket stands for itself. A closing bracket right after the opening one
// belongs to the set.
std::optional<std::size_t> length_of_set(std::string_view pattern) {
  std::size_t at = 1;
  if (at < pattern.size() && pattern[at] == '!') ++at;
  const std::size_t end = pattern.find(']', at + 1);
  return end == std::string_view::npos ? std::nullopt : std::optional(end + 1);
}

// Returns whether a set, given without its brackets, has the character.
bool is_in_set(std::string_view set, char character) {
  const bool is_negated = set.starts_with('!');
  if (is_negated) set.remove_prefix(1);
  bool found = false;
  for (std::size_t i = 0; i < set.size(); ++i) {
    const bool is_range = i + 2 < set.size() && set[i + 1] == '-';
    const char last = is_range ? set[i + 2] : set[i];
    found = found || (set[i] <= character && character <= last);
    if (is_range) i += 2;
  }
  return found != is_negated;
}

// Returns the length of the part at the start of `pattern` that stands for one character; 0 where
// it does not stand for this one.
std::size_t match_one(std::string_view pattern, char character) {
  if (pattern.empty()) return 0;
  if (pattern.front() == '?') return 1;
  if (pattern.front() == '[') {
    const std::optional<std::size_t> length = length_of_set(pattern);
    if (length) return is_in_set(pattern.substr(1, *length - 2), character) ? *length : 0;
  }
  return pattern.front() == character ? 1 : 0;
}

std::vector<std::string> stored_names(const std::vector<UnitLayout>& layout) {
  std::vector<std::string> names;
  std::unordered_set<std::string_view> known;
  for (const UnitLayout& unit : layout) {
    for (const ParameterTensor& tensor : unit.tensors) {
      if (tensor.kind == ParameterKind::kChoiceBias) continue;  // it has no gradient
      if (known.insert(tensor.stored_name).second) names.push_back(tensor.stored_name);
    }
  }
  return names;
}

// Throws ConfigError for a layer of which only some experts' parameters train: all of them are one
// tensor to its products.
void check_experts(const UnitLayout& unit, OptionNames name_of_option) {
  const ParameterTensor* const first = unit.find(ParameterKind::kExpertGate);
  if (first == nullptr) return;
  for (const ParameterTensor& tensor : unit.tensors) {
    if (!is_of_expert(tensor.kind) || tensor.trainable == first->trainable) continue;
    const ParameterTensor& trained = tensor.trainable ? tensor : *first;
    const ParameterTensor& frozen = tensor.trainable ? *first : tensor;
    throw ConfigError(
        fmt::format("{} trains {} but not {}: all parameters of a layer's experts train, or none",
                    name_of_option(Option::kTrainable), trained.stored_name, frozen.stored_name),
        "give patterns that match all experts of a layer with all their parameters, or none");
  }
}

}  // namespace

bool matches_pattern(std::string_view pattern, std::string_view name) {
  std::optional<std::size_t> star;  // the last one; its match ends at star_end in the name
  std::size_t star_end = 0;
  std::size_t p = 0;
  std::size_t n = 0;
  while (n < name.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      star_end = n;
      continue;
    }
    const std::size_t length = match_one(pattern.substr(std::min(p, pattern.size())), name[n]);
    if (length > 0) {
      p += length;
      ++n;
    } else if (star) {
      p = *star + 1;
      n = ++star_end;
    } else {
      return false;
    }
  }
  return pattern.find_first_not_of('*', p) == std::string_view::npos;
}

bool matches_name(std::string_view pattern, std::string_view name) {
  if (matches_pattern(pattern, name)) return true;
  return std::ranges::any_of(kPrefixes, [&](std::string_view prefix) {
    if (name.starts_with(prefix)) return matches_pattern(pattern, name.substr(prefix.size()));
    return matches_pattern(pattern, std::string(prefix) + std::string(name));
  });
}

bool is_trainable(const ModelConfig& config, std::string_view stored_name) {
  if (config.adapter.is_there()) return config.adapter.trains_whole(stored_name);
  if (config.trainable.empty()) return true;
  return std::ranges::any_of(config.trainable, [&](const std::string& pattern) {
    return matches_name(pattern, stored_name);
  });
}

ModelConfig with_trainable(ModelConfig config, std::vector<std::string> patterns,
                           OptionNames name_of_option) {
  config.trainable = std::move(patterns);
  check_trainable(config, name_of_option);
  return config;
}

void check_trainable(const ModelConfig& config, OptionNames name_of_option) {
  if (config.trainable.empty()) return;
  const std::vector<UnitLayout> layout = parameter_layout(config);
  const std::vector<std::string> names = stored_names(layout);
  constexpr std::size_t kShown = 12;
  for (const std::string& pattern : config.trainable) {
    const bool matches = std::ranges::any_of(
        names, [&](const std::string& name) { return matches_name(pattern, name); });
    if (matches) continue;
    const std::vector<std::string> shown(names.begin(),
                                         names.begin() + std::min(kShown, names.size()));
    throw ConfigError(
        fmt::format("{} {} matches no tensor of {} that can train",
                    name_of_option(Option::kTrainable), pattern, config.name),
        fmt::format("give names of its tensors, or patterns of them (*, ?, [..]): {}{}",
                    fmt::join(shown, ", "), names.size() > kShown ? ", ..." : ""));
  }
  for (const UnitLayout& unit : layout) check_experts(unit, name_of_option);
}

}  // namespace terrace
