#include "runtime/step/step_policy.h"

#include <algorithm>

#include "base/check.h"

namespace terrace {
namespace {

template <typename Policy>
auto& home_in(Policy& policy, StateClass state, std::size_t number) {
  switch (state) {
    case StateClass::kParameters:
      return policy.homes.at(number).parameters;
    case StateClass::kGradients:
      return policy.homes.at(number).gradients;
    case StateClass::kOptimizer:
      return policy.homes.at(number).optimizer;
    case StateClass::kActivations:
      return policy.activations.at(number).home;
    case StateClass::kErrors:
      return policy.homes.at(number).errors;
  }
  TERRACE_CHECK(false);
  return policy.homes.at(number).parameters;
}

}  // namespace

Tier StepPolicy::home(StateClass state, std::int32_t number) const {
  return home_in(*this, state, static_cast<std::size_t>(number));
}

void StepPolicy::set_home(StateClass state, std::int32_t number, Tier tier) {
  home_in(*this, state, static_cast<std::size_t>(number)) = tier;
}

Tier StepPolicy::gradient_home(std::int32_t group) const {
  const GroupHomes& of_group = homes.at(static_cast<std::size_t>(group));
  const bool stays = !defers_update(group) || of_group.keeps_gradient;
  return of_group.gradients == Tier::kNvme && stays ? Tier::kHost : of_group.gradients;
}

void defer_first_updates(StepPolicy& policy, std::span<const ParameterGroup> groups,
                         std::int32_t units) {
  for (std::size_t g = 0; g < groups.size(); ++g) {
    policy.homes.at(g).defers_update = groups[g].unit < units;
  }
}

std::int32_t deferred_units_of(const StepPolicy& policy, std::span<const ParameterGroup> groups) {
  std::int32_t units = 0;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    if (policy.homes.at(g).defers_update) units = std::max(units, groups[g].unit + 1);
  }
  return units;
}

}  // namespace terrace
