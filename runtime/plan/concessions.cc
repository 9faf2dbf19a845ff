#include "runtime/plan/concessions.h"

#include <algorithm>

namespace terrace {
namespace {

// Adds those with the longest time between uses first: the last ones of the forward are used again
// soonest.
void add_state(const StepModel& model, const PlacementRequest& request, Tier from, StateClass state,
               std::vector<Concession>& list) {
  const bool device = from == Tier::kDevice;
  if (request.homes[state].has_value() || (!device && !request.has_nvme)) return;
  const Tier to = device ? Tier::kHost : Tier::kNvme;
  const bool is_of_units = state == StateClass::kActivations;
  const std::int32_t count = is_of_units ? model.last_unit() + 1 : model.group_count();
  const auto first = static_cast<std::ptrdiff_t>(list.size());
  for (std::int32_t n = 0; n < count; ++n) {
    const bool is_here = is_of_units ? model.has_unit(n) : model.has_home(state, n);
    if (is_here) list.push_back({.state = state, .number = n, .from = from, .to = to});
  }
  if (request.has_backward || is_of_units) return;
  // Where there is only a forward, a group that several units use is used most often.
  const auto has_one_user = [&](const Concession& one) {
    std::int32_t users = 0;
    for (std::int32_t u = 0; u <= model.last_unit(); ++u) users += model.uses(u, one.number);
    return users <= 1;
  };
  std::stable_partition(list.begin() + first, list.end(), has_one_user);
}

void add_recompute(const StepModel& model, const PlacementRequest& request, Tier tier,
                   std::vector<Concession>& list) {
  if (request.recompute.has_value()) return;
  for (std::int32_t u = 0; u <= model.last_unit(); ++u) {
    const bool is_block = !model.joins_micro_batches(u) && !model.fuses_passes(u);
    if (!is_block || !model.has_unit(u)) continue;
    list.push_back(
        {.state = StateClass::kActivations, .number = u, .recomputes = true, .from = tier});
  }
}

}  // namespace

std::vector<Concession> concessions(const StepModel& model, const PlacementRequest& request,
                                    Tier tier, bool recomputes_first) {
  std::vector<Concession> list;
  if (tier == Tier::kDevice && request.unified) return list;
  const Tier compute = request.unified ? Tier::kHost : Tier::kDevice;
  for (const StateUse use : kStateUses) {
    for (const StateClassInfo& info : kStateClasses) {
      if (info.use == use) add_state(model, request, tier, info.state, list);
    }
    const StateUse before = tier == compute ? StateUse::kUpdate : kStateUses.back();
    if (use == before && !recomputes_first) add_recompute(model, request, tier, list);
  }
  return list;
}

void apply(const Concession& concession, StepPolicy& policy) {
  if (concession.recomputes) {
    policy.activations.at(static_cast<std::size_t>(concession.number)).recompute = true;
  } else if (policy.home(concession.state, concession.number) == concession.from) {
    policy.set_home(concession.state, concession.number, concession.to);
  }
}

}  // namespace terrace
