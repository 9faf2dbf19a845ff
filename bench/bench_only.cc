#include "bench/bench_only.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <fnmatch.h>

#include <algorithm>

#include "base/error.h"

namespace terrace {
namespace {

bool matches(const std::string& pattern, std::string_view name) {
  return ::fnmatch(pattern.c_str(), std::string(name).c_str(), 0) == 0;
}

}  // namespace

bool is_wanted(const std::vector<std::string>& only, std::string_view name) {
  return only.empty() || std::ranges::any_of(only, [&](const std::string& pattern) {
           return matches(pattern, name);
         });
}

std::vector<std::string> wanted_of(const BenchOptions& options, std::vector<std::string> names) {
  std::erase_if(names, [&](const std::string& name) { return !is_wanted(options, name); });
  return names;
}

bool any_is_wanted(const BenchOptions& options, const std::vector<std::string>& names) {
  return std::ranges::any_of(names,
                             [&](const std::string& name) { return is_wanted(options, name); });
}

void check_only(const Bench& bench, const BenchOptions& options) {
  if (options.only.empty()) return;
  BenchOptions all = options;
  all.only.clear();
  std::vector<std::string> names = bench.names(all);
  if (options.time_limit_s && !options.small && options.device == nullptr) {
    all.small = true;
    for (std::string& name : bench.names(all)) {
      if (std::ranges::find(names, name) == names.end()) names.push_back(std::move(name));
    }
  }
  for (const std::string& pattern : options.only) {
    const bool found =
        std::ranges::any_of(names, [&](const std::string& name) { return matches(pattern, name); });
    if (found) continue;
    throw ConfigError(
        fmt::format("terrace bench {}: --only {}: no result has this name", bench.name, pattern),
        fmt::format("its results are: {}", fmt::join(names, ", ")));
  }
}

}  // namespace terrace
