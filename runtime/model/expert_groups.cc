#include "runtime/model/expert_groups.h"

#include <algorithm>

#include "base/check.h"

namespace terrace {

std::vector<ExpertGroup> expert_groups(const UnitLayout& unit, std::int64_t per_group) {
  const ExpertLayout& experts = unit.experts;
  TERRACE_CHECK(experts.count == 0 || per_group > 0);
  std::vector<ExpertGroup> groups;
  for (std::int64_t first = 0; first < experts.count; first += per_group) {
    const std::int64_t count = std::min(per_group, experts.count - first);
    const std::int64_t begin = unit.shared_elements() + first * experts.elements;
    groups.push_back({first, count, {begin, begin + count * experts.elements}});
  }
  return groups;
}

}  // namespace terrace
