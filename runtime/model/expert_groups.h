#pragma once

#include <cstdint>
#include <vector>

#include "runtime/model/parameter_layout.h"

namespace terrace {

// Neighbouring experts of a unit whose parameters are one group (ParameterGroup).
struct ExpertGroup {
  std::int64_t first = 0;  // the first expert
  std::int64_t count = 0;
  ElementSpan elements;  // of the unit's sequence
};

// Returns the groups of a unit's experts, ascending, with `per_group` experts in each; the last one
// may have fewer. Empty where the unit has no experts.
std::vector<ExpertGroup> expert_groups(const UnitLayout& unit, std::int64_t per_group);

}  // namespace terrace
