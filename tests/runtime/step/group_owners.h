#pragma once

#include <cstdint>
#include <numeric>
#include <vector>

namespace terrace {

// Returns the units of groups of which each is all of a unit, as HomeGate takes them.
inline std::vector<std::int32_t> each_unit_one_group(std::int32_t units) {
  std::vector<std::int32_t> owners(static_cast<std::size_t>(units));
  std::iota(owners.begin(), owners.end(), 0);
  return owners;
}

}  // namespace terrace
