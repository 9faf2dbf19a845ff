#include "runtime/model/adapter_patterns.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "runtime/model/adapter_targets.h"
#include "runtime/tokenizer/regex_finder.h"

namespace terrace {
namespace {

// Returns what `use` returns. Gives an error of a pattern the remedy for patterns of modules.
template <typename Use>
auto with_remedy(Use use) {
  try {
    return use();
  } catch (const ConfigError& error) {
    throw ConfigError(error.what(),
                      "write the names of the modules into it, or parts of these names that follow "
                      "a dot");
  }
}

std::unique_ptr<PatternFinder> compile(const std::string& origin, const char* key,
                                       const std::string& pattern) {
  return with_remedy([&] {
    return make_regex_finder(fmt::format("\\A(.*\\.)?({})$", pattern),
                             fmt::format("{}: {} \"{}\"", origin, key, pattern));
  });
}

// Returns the value of the first rule that matches a name; null if none does.
template <typename Rules>
auto find_rule(const Rules& rules, std::string_view name) {
  const auto found = std::ranges::find_if(rules, [&](const auto& rule) {
    bool matches = false;
    rule.finder->find_all(name, [&](PatternFinder::Span) { matches = true; });
    return matches;
  });
  return found == rules.end() ? nullptr : &found->value;
}

}  // namespace

AdapterPatterns::AdapterPatterns(const AdapterOptions& options, const std::string& origin)
    : usual_{options.rank, options.alpha} {
  for (const auto& [pattern, rank] : options.rank_patterns) {
    ranks_.push_back({compile(origin, "rank_pattern", pattern), rank});
  }
  for (const auto& [pattern, alpha] : options.alpha_patterns) {
    alphas_.push_back({compile(origin, "alpha_pattern", pattern), alpha});
  }
}

std::optional<AdapterSize> AdapterPatterns::size_of(std::string_view module) const {
  const std::int64_t* const rank = with_remedy([&] { return find_rule(ranks_, module); });
  const double* const alpha = with_remedy([&] { return find_rule(alphas_, module); });
  if (rank == nullptr && alpha == nullptr) return std::nullopt;
  AdapterSize size = usual_;
  if (rank != nullptr) size.rank = *rank;
  if (alpha != nullptr) size.alpha = *alpha;
  return size;
}

ModelConfig with_adapter_sizes(ModelConfig config, const std::string& origin) {
  AdapterOptions& adapter = config.adapter;
  const AdapterPatterns patterns(adapter, origin);
  adapter.sizes.clear();
  for (const std::string& weight : adaptable_weights(config)) {
    if (!adapter.has_target(weight)) continue;
    const std::string module(module_of(weight));
    if (const std::optional<AdapterSize> size = patterns.size_of(module)) {
      adapter.sizes.emplace(module, *size);
    }
  }
  return config;
}

}  // namespace terrace
