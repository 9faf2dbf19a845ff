#include "runtime/step/step_model.h"

#include <algorithm>

namespace terrace {

bool StepModel::uses(std::int32_t unit, std::int32_t group) const {
  const std::vector<std::int32_t>& used = units.at(index(unit)).groups;
  return std::ranges::find(used, group) != used.end();
}

bool StepModel::trains(std::int32_t unit) const {
  return std::ranges::any_of(units.at(index(unit)).groups, [&](std::int32_t group) {
    return owner(group) == unit && group_trains(group);
  });
}

std::int32_t StepModel::lowest_trained() const {
  std::int32_t unit = 0;
  while (unit < last_unit() && !trains(unit)) ++unit;
  return unit;
}

bool StepModel::has_parameters(std::int32_t group) const {
  if (groups.at(index(group)).padded_elements == 0) return false;
  if (owns(group)) return true;
  for (std::int32_t u = 0; u <= last_unit(); ++u) {
    if (has_unit(u) && uses(u, group)) return true;
  }
  return false;
}

bool StepModel::lends(std::int32_t group) const {
  if (pipeline.stages == 1 || !owns(group)) return false;
  for (std::int32_t u = 0; u <= last_unit(); ++u) {
    if (!has_unit(u) && uses(u, group)) return true;
  }
  return false;
}

bool StepModel::passes_gradient(std::int32_t group) const {
  for (std::int32_t u = 0; u <= last_unit(); ++u) {
    if (stage_of(u) == stage_of(owner(group))) continue;
    const std::vector<std::int32_t>& used = units.at(index(u)).groups;
    const auto found = std::ranges::find(used, group);
    if (found == used.end()) continue;
    const auto number = static_cast<std::int32_t>(found - used.begin());
    if (UnitModel::writes_gradient(units.at(index(u)).backward, number)) return true;
  }
  return false;
}

bool StepModel::leaves_router_sums(std::int32_t unit) const {
  return router_sums != 0 && UnitModel::writes(units.at(index(unit)).forward, Role::kRouterSums);
}

std::int32_t StepModel::router_layers_before(std::int32_t unit) const {
  std::int32_t layers = 0;
  for (std::int32_t u = 0; u < unit; ++u) layers += leaves_router_sums(u) ? 1 : 0;
  return layers;
}

bool StepModel::passes_router_sums() const {
  return router_sums != 0 && pipeline.stages > 1 &&
         std::ranges::any_of(units, [](const UnitModel& unit) {
           return UnitModel::reads(unit.backward, Role::kAllRouterSums);
         });
}

bool StepModel::passes_router_sums(std::int32_t begin, std::int32_t end) const {
  return passes_router_sums() && router_layers_before(end) > router_layers_before(begin);
}

bool StepModel::has_router_sums() const {
  if (passes_router_sums()) return true;
  for (std::int32_t u = 0; u <= last_unit(); ++u) {
    if (has_unit(u) && leaves_router_sums(u)) return true;
  }
  return false;
}

bool StepModel::has_home(StateClass state, std::int32_t group) const {
  if (state == StateClass::kErrors && !keeps_errors()) return false;
  const bool is_of_all = info_of(state).use == StateUse::kEveryPass;
  return is_of_all ? has_parameters(group) : owns(group) && group_trains(group);
}

std::int64_t StepModel::partials_before(std::int32_t group, std::int32_t stage) const {
  std::int64_t blocks = 0;
  for (std::int32_t g = 0; g < group; ++g) {
    if (stage_of(owner(g)) != stage) continue;
    blocks += groups.at(index(g)).trained_elements() / kBlockElements;
  }
  return zero.of_optimizer() ? blocks / zero.ranks : blocks;
}

std::int64_t StepModel::most_partials() const {
  std::int64_t most = 0;
  for (std::int32_t stage = 0; stage < pipeline.stages; ++stage) {
    most = std::max(most, partials_before(group_count(), stage));
  }
  return most;
}

std::int32_t PipelineCut::stage_of(std::int32_t unit) const {
  const auto after = std::upper_bound(piece_begins.begin(), piece_begins.end() - 1, unit);
  return (static_cast<std::int32_t>(after - piece_begins.begin()) - 1) % stages;
}

}  // namespace terrace
