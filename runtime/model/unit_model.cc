#include "runtime/model/unit_model.h"

#include <algorithm>

namespace terrace {
namespace {

bool any_touches(const std::vector<UnitStep>& pass, std::vector<UnitAccess> UnitStep::* list,
                 Role role) {
  return std::ranges::any_of(pass, [&](const UnitStep& step) {
    return std::ranges::find(step.*list, role, &UnitAccess::role) != (step.*list).end();
  });
}

}  // namespace

bool UnitModel::reads(const std::vector<UnitStep>& pass, Role role) {
  return any_touches(pass, &UnitStep::reads, role);
}

bool UnitModel::writes(const std::vector<UnitStep>& pass, Role role) {
  return any_touches(pass, &UnitStep::writes, role);
}

}  // namespace terrace
