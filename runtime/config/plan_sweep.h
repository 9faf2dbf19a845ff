#pragma once

#include <cstddef>
#include <string>
#include <vector>

// The combinations of values that --sweep of `terrace plan` names.
namespace terrace {

struct SweptFlag {
  std::string name;  // without dashes
  std::vector<std::string> values;
};

struct PlanSweep {
  std::vector<SweptFlag> flags;     // in the order in which they were given
  std::vector<std::string> common;  // the arguments of all plans: those without --sweep

  // Returns the number of combinations; 0 without --sweep.
  std::size_t combinations() const;
  // Returns the values of a combination, by flag. The values of the last flag change first.
  std::vector<std::string> values_of(std::size_t combination) const;
  // Returns the arguments of `terrace plan` for a combination.
  std::vector<std::string> arguments_of(std::size_t combination) const;
};

// The most combinations of a sweep.
inline constexpr std::size_t kSweepMost = 1000;

// Reads the sweeps among the arguments after `terrace plan`. Throws ConfigError for a flag that
// does not exist (with the nearest name), that cannot be swept, or that is given or swept twice,
// for an empty value, and for more combinations than kSweepMost.
PlanSweep parse_plan_sweep(const std::vector<std::string>& arguments);

}  // namespace terrace
