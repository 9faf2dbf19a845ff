#pragma once

#include <limits>

namespace terrace {

// Returns whether a number of a step is 0 or more, and finite in the fp32 that updates compute
// with.
constexpr bool fits_float(double value) {
  return value >= 0 && value <= double{std::numeric_limits<float>::max()};
}

}  // namespace terrace
