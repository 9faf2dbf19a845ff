#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "bench/bench.h"

// Which results of a benchmark are measured (--only).
namespace terrace {

// Returns whether a result of this name is wanted: one of the patterns matches it (* stands for any
// text, ? for a character, [ab] for one of some), or there are no patterns.
bool is_wanted(const std::vector<std::string>& only, std::string_view name);
inline bool is_wanted(const BenchOptions& options, std::string_view name) {
  return is_wanted(options.only, name);
}
// Returns the names that are wanted.
std::vector<std::string> wanted_of(const BenchOptions& options, std::vector<std::string> names);
bool any_is_wanted(const BenchOptions& options, const std::vector<std::string>& names);

// Throws ConfigError for a pattern that matches no result of the benchmark; its remedy lists all
// names. With a time limit, results of nano that a hurried benchmark measures first count too.
void check_only(const Bench& bench, const BenchOptions& options);

}  // namespace terrace
