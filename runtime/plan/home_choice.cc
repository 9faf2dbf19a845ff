#include "runtime/plan/home_choice.h"

#include <algorithm>
#include <limits>

#include "runtime/plan/order_bound.h"
#include "runtime/plan/update_split.h"

namespace terrace {
namespace {

// Returns the smallest count in [0, most] that passes; `most` if none does.
std::size_t fewest(std::size_t most, FunctionRef<bool(std::size_t)> passes) {
  std::size_t low = 0;
  std::size_t high = most;
  while (low < high) {
    const std::size_t middle = (low + high) / 2;
    if (passes(middle)) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

}  // namespace

bool HomeChoice::has_one_order() const {
  return request_.micro_batches == 1 || model_.pipeline.stages > 1 ||
         request_.reduces_micro_batches;
}

MicroBatchOrder HomeChoice::smallest_order() const {
  const auto usual =
      has_one_order() ? MicroBatchOrder::kMicroBatchMajor : MicroBatchOrder::kLayerMajor;
  return request_.order.value_or(usual);
}

std::optional<StepPlan> HomeChoice::choose() const {
  if (request_.order.has_value() || has_one_order()) return try_order(smallest_order());
  std::optional<StepPlan> layers = try_order(MicroBatchOrder::kLayerMajor);
  if (layers.has_value() && moved_bytes(layers->program) < least_moved_of_other_order()) {
    return layers;
  }
  std::optional<StepPlan> whole = try_order(MicroBatchOrder::kMicroBatchMajor);
  if (!layers.has_value() || !whole.has_value()) return whole.has_value() ? whole : layers;
  return moved_bytes(layers->program) < moved_bytes(whole->program) ? layers : whole;
}

double HomeChoice::least_moved_of_other_order() const {
  const auto& budget = budgets_.at(static_cast<std::size_t>(compute_tier()));
  if (!budget.has_value()) return 0;
  return least_moved_micro_batch_major(model_, request_.micro_batches, request_.unified, *budget);
}

// The device gives its states to the host before it recomputes, which a host without room cannot
// take: then recomputation comes first.
std::optional<StepPlan> HomeChoice::try_order(MicroBatchOrder order) const {
  std::optional<StepPlan> plan = with_fewest_concessions(order);
  if (plan.has_value() || request_.recompute.has_value()) return plan;
  PlacementRequest recomputing = request_;
  recomputing.recompute = true;
  return HomeChoice(model_, recomputing, budgets_).with_fewest_concessions(order);
}

// What leaves the device goes to the host, so the device is settled first.
std::optional<StepPlan> HomeChoice::with_fewest_concessions(MicroBatchOrder order) const {
  const auto on_device = fewest_of(Tier::kDevice, [&](std::size_t count) {
    return may_fit(policy_with(count, 0, order), Tier::kDevice);
  });
  if (!on_device.has_value()) return std::nullopt;
  const auto on_host = fewest_of(Tier::kHost, [&](std::size_t count) {
    return may_fit(policy_with(*on_device, count, order), Tier::kHost);
  });
  if (!on_host.has_value()) return std::nullopt;
  StepPlan plan = compiled(policy_with(*on_device, *on_host, order));
  if (!fits(plan.ledger)) return std::nullopt;
  return plan;
}

// In micro-batch-major order a step of two micro-batches needs no more of the compute tier than one
// of many, and its program is small: if it does not fit, the step does not either.
bool HomeChoice::may_fit(const StepPolicy& policy, Tier tier) const {
  constexpr std::int32_t kFew = 2;
  const auto& budget = budgets_.at(static_cast<std::size_t>(tier));
  const bool repeats = policy.order == MicroBatchOrder::kMicroBatchMajor &&
                       model_.pipeline.stages == 1 && model_.tasks.empty() &&
                       policy.micro_batches > kFew;
  if (repeats && tier == compute_tier() && budget.has_value()) {
    StepPolicy few = policy;
    few.micro_batches = kFew;
    if (least_live_bytes(model_, few).at(static_cast<std::size_t>(tier)) > *budget) return false;
  }
  return can_fit(model_, policy, budgets_, tier);
}

// The fewest concessions of a tier that pass; none where not even all of them do.
std::optional<std::size_t> HomeChoice::fewest_of(Tier tier,
                                                 FunctionRef<bool(std::size_t)> passes) const {
  const std::size_t most = concessions(tier).size();
  if (passes(0)) return 0;
  if (most == 0 || !passes(most)) return std::nullopt;
  return fewest(most, passes);
}

StepPolicy HomeChoice::fastest(MicroBatchOrder order) const {
  UnitHomes homes;
  for (const StateClassInfo& info : kStateClasses) {
    homes[info.state] = request_.homes[info.state].value_or(compute_tier());
  }
  homes.activations_named = request_.homes[StateClass::kActivations].has_value();
  homes.recompute = request_.recompute.value_or(false);
  StepPolicy policy;
  policy.micro_batches = request_.micro_batches;
  policy.order = order;
  policy.pipeline_schedule = request_.pipeline_schedule;
  policy.unified = request_.unified;
  policy.reduces_micro_batches = request_.reduces_micro_batches;
  policy.has_backward = request_.has_backward;
  policy.updates_wait_for_norm = request_.updates_wait_for_norm;
  policy.lookahead = request_.lookahead.value_or(kUsualLookahead);
  policy.homes.assign(model_.unit_count(), homes);
  return policy;
}

// What gives way to relieve a tier, in that order: what updates keep goes first, as it is used once
// a step; then recomputation; parameters and activations go last, as the compute waits for them. On
// the host of a device recomputation is the very last: it makes room only where activations wait
// there.
std::vector<HomeChoice::Concession> HomeChoice::concessions(Tier tier) const {
  std::vector<Concession> list;
  if (tier == Tier::kDevice && request_.unified) return list;
  for (const StateUse use : kStateUses) {
    for (const StateClassInfo& info : kStateClasses) {
      if (info.use == use) add(list, tier, info.state);
    }
    const StateUse before = tier == compute_tier() ? StateUse::kUpdate : kStateUses.back();
    if (use == before) add_recompute(list);
  }
  return list;
}

// Units with the longest time between uses first: the last of the forward are used again soonest.
void HomeChoice::add(std::vector<Concession>& list, Tier from, StateClass state) const {
  const bool device = from == Tier::kDevice;
  if (request_.homes[state].has_value() || (!device && !request_.has_nvme)) return;
  const auto move = [from, to = device ? Tier::kHost : Tier::kNvme, state](UnitHomes& homes) {
    if (homes[state] == from) homes[state] = to;
  };
  const std::size_t first = list.size();
  for (std::int32_t u = 0; u <= model_.head(); ++u) list.push_back({u, move});
  // Where there is a forward alone, a tied head's embedding is what is used most often.
  const bool keeps_embedding = !request_.has_backward && model_.tied;
  if (keeps_embedding) std::rotate(list.begin() + first, list.begin() + first + 1, list.end());
}

void HomeChoice::add_recompute(std::vector<Concession>& list) const {
  if (request_.recompute.has_value()) return;
  for (std::int32_t u = 0; u <= model_.head(); ++u) {
    if (model_.is_embedding(u) || model_.is_head(u)) continue;
    list.push_back({u, [](UnitHomes& homes) { homes.recompute = true; }});
  }
}

// The policy with so many concessions on the device and on the host.
StepPolicy HomeChoice::policy_with(std::size_t on_device, std::size_t on_host,
                                   MicroBatchOrder order) const {
  StepPolicy policy = fastest(order);
  const auto apply = [&policy](const std::vector<Concession>& list, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) list[i].apply(policy.homes.at(list[i].unit));
  };
  apply(concessions(Tier::kDevice), on_device);
  apply(concessions(Tier::kHost), on_host);
  const bool streams = !request_.unified && request_.streamed_updates.has_value();
  if (streams) stream_updates(model_, policy, *request_.streamed_updates);
  return policy;
}

StepPlan HomeChoice::compiled(StepPolicy policy) const {
  StepPlan plan{.policy = std::move(policy), .program = {}, .ledger = {}};
  plan.program = compile_step(model_, plan.policy, budgets_);
  plan.ledger = ledger_of(plan.program, budgets_);
  return plan;
}

// What the policy cannot do without. Its program does not run.
StepPlan HomeChoice::least(StepPolicy policy) const {
  StepPlan plan{.policy = std::move(policy), .program = {}, .ledger = {}};
  plan.program = compile_least(model_, plan.policy, budgets_);
  plan.ledger = ledger_of(plan.program, budgets_);
  return plan;
}

std::size_t HomeChoice::lacking_bytes() const {
  const StepPlan smallest = smallest_plan();
  std::size_t bytes = 0;
  for (const Tier tier : kTiers) bytes += smallest.ledger[tier].over_bytes();
  return bytes;
}

std::size_t HomeChoice::lacking_live_bytes() const {
  std::size_t least = std::numeric_limits<std::size_t>::max();
  for (const auto& [on_device, on_host] : extremes()) {
    const auto live = least_live_bytes(model_, policy_with(on_device, on_host, smallest_order()));
    std::size_t lacking = 0;
    for (std::size_t t = 0; t < kTierCount; ++t) {
      const std::size_t budget = budgets_.at(t).value_or(live.at(t));
      lacking += live.at(t) - std::min(live.at(t), budget);
    }
    least = std::min(least, lacking);
    if (least == 0) break;
  }
  return least;
}

// All concessions of a tier or none, on the device and on the host, the fewest first.
std::array<std::pair<std::size_t, std::size_t>, 4> HomeChoice::extremes() const {
  const std::size_t of_device = concessions(Tier::kDevice).size();
  const std::size_t of_host = concessions(Tier::kHost).size();
  return {{{0, 0}, {of_device, 0}, {0, of_host}, {of_device, of_host}}};
}

// Of equals the first, which asks for the least of a drive.
StepPlan HomeChoice::smallest_plan() const {
  const auto short_of = [](const StepPlan& plan) {
    return std::pair{plan.ledger[Tier::kDevice].over_bytes(),
                     plan.ledger[Tier::kHost].over_bytes()};
  };
  std::optional<StepPlan> smallest;
  for (const auto& [on_device, on_host] : extremes()) {
    StepPlan plan = least(policy_with(on_device, on_host, smallest_order()));
    const bool is_smaller = !smallest.has_value() || short_of(plan) < short_of(*smallest);
    if (is_smaller) smallest = std::move(plan);
  }
  return std::move(*smallest);
}

}  // namespace terrace
