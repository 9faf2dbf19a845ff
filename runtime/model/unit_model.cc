#include "runtime/model/unit_model.h"

#include <algorithm>

#include "base/check.h"

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

bool UnitModel::writes_gradient(const std::vector<UnitStep>& pass, std::int32_t index) {
  const UnitAccess gradient{.role = Role::kGradient, .number = index};
  return std::ranges::any_of(pass, [&](const UnitStep& step) {
    return std::ranges::find(step.writes, gradient) != step.writes.end();
  });
}

std::vector<StepSpan> UnitModel::parts(const std::vector<UnitStep>& pass) {
  std::vector<StepSpan> parts;
  for (std::int32_t s = 0; s < static_cast<std::int32_t>(pass.size()); ++s) {
    if (parts.empty() || pass[static_cast<std::size_t>(s)].begins_part) parts.push_back({s, s});
    parts.back().end = s + 1;
  }
  return parts;
}

bool computes_alike(const UnitModel& a, const UnitModel& b) {
  return a.kind == b.kind && a.groups.size() == b.groups.size() &&
         a.inputs.size() == b.inputs.size() && a.saved_bytes == b.saved_bytes &&
         a.between == b.between && a.forward == b.forward && a.recompute == b.recompute &&
         a.backward == b.backward;
}

void ComputeModel::add(UnitModel unit, ParameterGroup group) {
  group.unit = static_cast<std::int32_t>(units.size());
  unit.groups.insert(unit.groups.begin(), static_cast<std::int32_t>(groups.size()));
  groups.push_back(group);
  units.push_back(std::move(unit));
}

void ComputeModel::add_group(ParameterGroup group) {
  group.unit = static_cast<std::int32_t>(units.size()) - 1;
  units.back().groups.push_back(static_cast<std::int32_t>(groups.size()));
  groups.push_back(group);
}

std::int32_t ComputeModel::group_at(std::int32_t unit, std::int64_t element) const {
  for (const std::int32_t number : units.at(static_cast<std::size_t>(unit)).groups) {
    const ParameterGroup& group = groups.at(static_cast<std::size_t>(number));
    const std::int64_t at = element - group.first_element;
    if (group.unit == unit && 0 <= at && at < group.padded_elements) return number;
  }
  TERRACE_CHECK(false);
  return -1;
}

}  // namespace terrace
