#pragma once

#include <cstddef>
#include <string>
#include <vector>

// The sets that --validation-data names. Evaluations tell the loss of each set by itself.
namespace terrace {

struct ValidationSet {
  std::string name;  // empty: the set of the paths that have no name, always the first
  std::vector<std::string> paths;

  friend bool operator==(const ValidationSet&, const ValidationSet&) = default;
};

inline constexpr std::size_t kMostNameBytes = 64;

// Reads the values of --validation-data, each NAME=PATH or PATH. The paths without a name are one
// set, which is the first. Paths of one name that follow each other are one set. Text in front of a
// "=" with a "/" in it belongs to a path ("./a=b"). Throws ConfigError for a name that is empty, is
// longer than kMostNameBytes, has other characters than letters, digits, "_", "-" and ".", or comes
// again after another one, and for a path that a set has twice.
std::vector<ValidationSet> parse_validation_sets(const std::vector<std::string>& texts);

// Returns values from which parse_validation_sets() makes these sets.
std::vector<std::string> texts_of(const std::vector<ValidationSet>& sets);

}  // namespace terrace
