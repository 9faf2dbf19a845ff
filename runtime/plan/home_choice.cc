#include "runtime/plan/home_choice.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "runtime/plan/concessions.h"
#include "runtime/plan/order_bound.h"
#include "runtime/plan/update_split.h"

namespace terrace {
namespace {

constexpr std::int32_t kFewMicroBatches = 2;
// Before a layer-major step of very many micro-batches is made, steps of this many, of 8 times as
// many and so on are made: if one of them needs too much, so does the step.
constexpr std::int32_t kFewerMicroBatches = 64;
constexpr std::int32_t kTimesMoreMicroBatches = 8;
constexpr std::size_t kUnitsOfTries = 256;

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

std::size_t sum_of(const std::array<std::size_t, kTierCount>& bytes) {
  return std::accumulate(bytes.begin(), bytes.end(), std::size_t{0});
}

// If two plans move as much, the one in micro-batch-major order is better: it keeps fewer hidden
// states.
bool is_better(const StepPlan& plan, const StepPlan& best) {
  const double moved = moved_bytes(plan.program);
  const double least = moved_bytes(best.program);
  return moved < least ||
         (moved == least && plan.policy.order == MicroBatchOrder::kMicroBatchMajor);
}

}  // namespace

bool HomeChoice::has_one_order() const {
  return request_.micro_batches == 1 || model_.pipeline.stages > 1 ||
         request_.reduces_micro_batches;
}

std::vector<MicroBatchOrder> HomeChoice::orders() const {
  if (request_.order.has_value()) return {*request_.order};
  if (has_one_order()) return {MicroBatchOrder::kMicroBatchMajor};
  return {MicroBatchOrder::kLayerMajor, MicroBatchOrder::kMicroBatchMajor};
}

MicroBatchOrder HomeChoice::quicker_order() const {
  StepPolicy policy;
  policy.micro_batches = request_.micro_batches;
  return has_period(model_, policy) ? MicroBatchOrder::kMicroBatchMajor
                                    : MicroBatchOrder::kLayerMajor;
}

std::optional<StepPlan> HomeChoice::choose() const {
  std::optional<StepPlan> best;
  std::vector<MicroBatchOrder> quicker_first = orders();
  std::ranges::partition(quicker_first, [&](auto order) { return order == quicker_order(); });
  for (const MicroBatchOrder order : quicker_first) {
    if (best.has_value() && !may_be_better(order, best->program)) break;
    std::optional<StepPlan> plan = try_order(order);
    if (!plan.has_value()) continue;
    if (!best.has_value() || is_better(*plan, *best)) best = std::move(plan);
  }
  if (best.has_value()) return best;
  for (const PolicyKey& key : extremes()) {
    if (!fits_least(key, kTiers)) continue;
    StepPlan plan = compiled(policy_of(key));
    if (!fits(plan.ledger)) continue;
    if (!request_.is_trial) plan.reasons = reasons_of(key);
    return plan;
  }
  return std::nullopt;
}

// Layer-major order saves what every micro-batch moves in the other order.
bool HomeChoice::may_be_better(MicroBatchOrder order, const Program& best) const {
  if (order == MicroBatchOrder::kLayerMajor) return moved_by_repetition(best) > 0;
  const auto& budget = budgets_.at(static_cast<std::size_t>(compute_tier()));
  return !budget.has_value() ||
         moved_bytes(best) >= least_moved_micro_batch_major(model_, request_.micro_batches,
                                                            request_.unified, *budget);
}

std::optional<StepPlan> HomeChoice::try_order(MicroBatchOrder order) const {
  for (const PolicyKey& start : starts(order)) {
    StepPlan plan;
    const auto accepts = [&](const PolicyKey& key) {
      plan = compiled(policy_of(key));
      if (!fits(plan.ledger)) return false;
      if (!request_.is_trial) plan.reasons = reasons_of(key);
      return true;
    };
    if (find_fewest_concessions(start, accepts)) return plan;
  }
  return std::nullopt;
}

// The device gives its states to the host before it recomputes. If the host has no room for them,
// recomputation must come first, so both are tried.
std::vector<PolicyKey> HomeChoice::starts(MicroBatchOrder order) const {
  std::vector<PolicyKey> keys = {{.order = order}};
  if (!request_.recompute.has_value()) keys.push_back({.order = order, .recomputes_first = true});
  return keys;
}

// Settles the device first, because the states that leave it go to the host. If the host then has
// no room, more of the device is given up: states on their way to the device or back pass through
// the host, so the host may need more where less is at home there.
bool HomeChoice::find_fewest_concessions(PolicyKey key,
                                         FunctionRef<bool(const PolicyKey&)> accepts) const {
  // More tries are made where they take little time.
  const std::size_t more_of_device =
      std::clamp<std::size_t>(kUnitsOfTries / model_.unit_count(), 1, 32);
  const auto on_device = fewest_of(Tier::kDevice, key, &PolicyKey::on_device);
  if (!on_device.has_value()) return false;
  const std::size_t most = concessions(Tier::kDevice, key).size();
  for (std::size_t more = 0; more <= more_of_device; ++more) {
    const std::size_t next = *on_device + (most - *on_device) * more / more_of_device;
    if (more > 0 && next == key.on_device) continue;
    key.on_device = next;
    key.on_host = 0;
    const auto on_host = fewest_of(Tier::kHost, key, &PolicyKey::on_host);
    if (!on_host.has_value()) continue;
    key.on_host = *on_host;
    if (accepts(key)) return true;
  }
  return false;
}

// Returns the key for a step of two micro-batches. In micro-batch-major order it needs no more of
// the compute tier than a step of many, and its program is small: if it does not fit, the step does
// not either.
PolicyKey HomeChoice::shortened(PolicyKey key) const {
  const bool can_be_shorter = key.order == MicroBatchOrder::kMicroBatchMajor &&
                              model_.pipeline.stages == 1 && model_.tasks.empty() &&
                              request_.micro_batches > kFewMicroBatches;
  if (can_be_shorter) key.micro_batches = kFewMicroBatches;
  return key;
}

// In layer-major order the need grows with the micro-batches, and the program of very many is
// large.
bool HomeChoice::needs_too_much(const PolicyKey& key) const {
  const auto t = static_cast<std::size_t>(compute_tier());
  const auto is_over = [&](const PolicyKey& shorter) {
    return live_bytes(shorter).at(t) > *budgets_.at(t);
  };
  if (!budgets_.at(t).has_value() || !model_.tasks.empty()) return false;
  if (key.order == MicroBatchOrder::kMicroBatchMajor) {
    return shortened(key) != key && is_over(shortened(key));
  }
  PolicyKey shorter = key;
  shorter.micro_batches = kFewerMicroBatches;
  while (2 * shorter.micro_batches <= request_.micro_batches) {
    if (is_over(shorter)) return true;
    shorter.micro_batches *= kTimesMoreMicroBatches;
  }
  return false;
}

bool HomeChoice::fits_least(const PolicyKey& key, std::span<const Tier> tiers) const {
  const bool asks_compute = std::ranges::find(tiers, compute_tier()) != tiers.end();
  if (asks_compute && needs_too_much(key)) return false;
  return footprints_.fit({model_, key, [&] { return policy_of(key); }}, budgets_, tiers);
}

const std::array<std::size_t, kTierCount>& HomeChoice::live_bytes(const PolicyKey& key) const {
  return footprints_.live_bytes({model_, key, [&] { return policy_of(key); }});
}

// Returns whether the step may fit a tier. Prefetching moves the passage of states through the host
// to other times, so it may help there. It may also help where only the packing is too high. In the
// compute tier it only adds live bytes.
bool HomeChoice::may_fit(const PolicyKey& key, Tier tier) const {
  const auto t = static_cast<std::size_t>(tier);
  if (!budgets_.at(t).has_value()) return true;
  if (fits_least(key, std::span(&tier, 1))) return true;
  if (tier == compute_tier()) {
    if (needs_too_much(key)) return false;
    if (live_bytes(key).at(t) > *budgets_.at(t)) return false;
  } else if (footprints_.needed_on_host({model_, key, [&] { return policy_of(key); }}) >
             *budgets_.at(t)) {
    return false;
  }
  return fits_with_prefetch(model_, policy_of(key), budgets_, tier);
}

// Returns the fewest concessions of a tier with which the step may fit that tier; none where not
// even all of them suffice. `count` is the member of the key that is varied; the others stay.
std::optional<std::size_t> HomeChoice::fewest_of(Tier tier, PolicyKey key,
                                                 std::size_t PolicyKey::* count) const {
  const std::size_t most = concessions(tier, key).size();
  const auto passes = [&](std::size_t number) {
    key.*count = number;
    return may_fit(key, tier);
  };
  if (passes(0)) return 0;
  if (most == 0 || !passes(most)) return std::nullopt;
  return fewest(most, passes);
}

StepPolicy HomeChoice::fastest(const PolicyKey& key) const {
  const auto home_of = [this](StateClass state) {
    return request_.homes[state].value_or(compute_tier());
  };
  const GroupHomes homes{.parameters = home_of(StateClass::kParameters),
                         .gradients = home_of(StateClass::kGradients),
                         .optimizer = home_of(StateClass::kOptimizer),
                         .errors = home_of(StateClass::kErrors)};
  const UnitActivations activations{
      .home = home_of(StateClass::kActivations),
      .recompute = request_.recompute.value_or(key.recomputes_first),
      .is_named = request_.homes[StateClass::kActivations].has_value()};
  StepPolicy policy;
  policy.micro_batches = key.micro_batches == 0 ? request_.micro_batches : key.micro_batches;
  policy.order = key.order;
  policy.pipeline_schedule = request_.pipeline_schedule;
  policy.unified = request_.unified;
  policy.reduces_micro_batches = request_.reduces_micro_batches;
  policy.has_backward = request_.has_backward;
  policy.updates_wait_for_norm = request_.updates_wait_for_norm;
  policy.lookahead = request_.lookahead.value_or(kUsualLookahead);
  policy.homes.assign(model_.groups.size(), homes);
  policy.activations.assign(model_.unit_count(), activations);
  defer_first_updates(policy, model_.groups, request_.deferred_units.value_or(kUsualDeferredUnits));
  return policy;
}

std::vector<Concession> HomeChoice::concessions(Tier tier, const PolicyKey& key) const {
  return terrace::concessions(model_, request_, tier, key.recomputes_first);
}

TierPressure HomeChoice::pressure_on(Tier tier, const PolicyKey& key,
                                     std::size_t PolicyKey::* count) const {
  const auto t = static_cast<std::size_t>(tier);
  TierPressure pressure{.tier = tier, .budget_bytes = budgets_.at(t)};
  pressure.given_way = concessions(tier, key);
  pressure.possible = pressure.given_way.size();
  pressure.given_way.resize(key.*count);
  if (key.*count == 0) return pressure;
  PolicyKey less = key;
  --(less.*count);
  if (tier == Tier::kDevice) less.on_host = 0;  // the search settled the device first
  pressure.needed_with_one_less = live_bytes(tier == compute_tier() ? shortened(less) : less).at(t);
  return pressure;
}

PlanReasons HomeChoice::reasons_of(const PolicyKey& key) const {
  PlanReasons reasons;
  reasons.is_known = true;
  for (const StateClassInfo& info : kStateClasses) {
    reasons.is_asked[info.state] = request_.homes[info.state].has_value();
  }
  reasons.recompute_is_asked = request_.recompute.has_value();
  if (!request_.unified) {
    reasons.tiers.push_back(pressure_on(Tier::kDevice, key, &PolicyKey::on_device));
  }
  reasons.tiers.push_back(pressure_on(Tier::kHost, key, &PolicyKey::on_host));
  return reasons;
}

StepPolicy HomeChoice::policy_of(const PolicyKey& key) const {
  StepPolicy policy = fastest(key);
  const auto apply_first = [&policy](const std::vector<Concession>& list, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) apply(list[i], policy);
  };
  apply_first(concessions(Tier::kDevice, key), key.on_device);
  apply_first(concessions(Tier::kHost, key), key.on_host);
  const bool streams = !request_.unified && request_.streamed_updates.has_value();
  if (streams) stream_updates(model_, policy, *request_.streamed_updates);
  return policy;
}

StepPlan HomeChoice::compiled(StepPolicy policy) const {
  StepPlan plan{.policy = std::move(policy), .program = {}, .ledger = {}};
  plan.program = request_.is_trial ? place_step(model_, plan.policy, budgets_)
                                   : compile_step(model_, plan.policy, budgets_);
  plan.ledger = ledger_of(plan.program, budgets_);
  return plan;
}

StepPlan HomeChoice::least(StepPolicy policy) const {
  StepPlan plan{.policy = std::move(policy), .program = {}, .ledger = {}};
  plan.program = compile_least(model_, plan.policy, budgets_);
  plan.ledger = ledger_of(plan.program, budgets_);
  return plan;
}

std::vector<PolicyKey> HomeChoice::extremes(bool is_trial) const {
  std::vector<PolicyKey> keys;
  for (const MicroBatchOrder order : orders()) {
    for (PolicyKey key : starts(order)) {
      const std::size_t of_device = concessions(Tier::kDevice, key).size();
      const std::size_t of_host = concessions(Tier::kHost, key).size();
      for (const bool all_of_host : {false, true}) {
        for (const bool all_of_device : {false, true}) {
          key.on_device = all_of_device ? of_device : 0;
          key.on_host = all_of_host ? of_host : 0;
          if (std::ranges::find(keys, key) == keys.end()) keys.push_back(key);
        }
      }
    }
  }
  if (is_trial) {
    std::ranges::stable_partition(
        keys, [quicker = quicker_order()](const PolicyKey& key) { return key.order == quicker; });
  }
  return keys;
}

void HomeChoice::find_least_policy(FunctionRef<bool(StepPolicy&)> takes) const {
  for (const PolicyKey& key : extremes(request_.is_trial)) {
    if (!fits_least(key, kTiers)) continue;
    StepPolicy policy = policy_of(key);
    if (takes(policy)) return;
  }
}

std::optional<Ledger> HomeChoice::least_ledger() const {
  for (const PolicyKey& key : extremes(true)) {
    if (!fits_least(key, kTiers)) continue;
    Ledger ledger;
    for (const Tier tier : kTiers) {
      const auto t = static_cast<std::size_t>(tier);
      TierLedger& entry = ledger[tier];
      entry.budget_bytes = budgets_.at(t);
      entry.live_peak_bytes = live_bytes(key).at(t);
      entry.peak_bytes =
          footprints_.packed_bytes({model_, key, [&] { return policy_of(key); }}, tier);
    }
    return ledger;
  }
  return std::nullopt;
}

bool HomeChoice::can_choose() const {
  std::vector<PolicyKey> keys = extremes();
  std::ranges::reverse(keys);  // those that need the least come last
  if (std::ranges::any_of(keys, [&](const auto& key) { return fits_least(key, kTiers); })) {
    return true;
  }
  for (const MicroBatchOrder order : orders()) {
    for (const PolicyKey& start : starts(order)) {
      const auto accepts = [&](const PolicyKey& key) {
        if (fits_least(key, kTiers)) return true;
        return fits(ledger_of(place_step(model_, policy_of(key), budgets_), budgets_));
      };
      if (find_fewest_concessions(start, accepts)) return true;
    }
  }
  return false;
}

std::array<std::size_t, kTierCount> HomeChoice::lacking_live(const PolicyKey& key) const {
  std::array<std::size_t, kTierCount> lacking = live_bytes(shortened(key));
  for (std::size_t t = 0; t < kTierCount; ++t) {
    lacking.at(t) -= std::min(lacking.at(t), budgets_.at(t).value_or(lacking.at(t)));
  }
  return lacking;
}

std::size_t HomeChoice::lacking_live_bytes() const {
  std::size_t least = std::numeric_limits<std::size_t>::max();
  std::vector<PolicyKey> keys = extremes();
  std::ranges::reverse(keys);  // those that need the least come last
  for (const PolicyKey& key : keys) {
    if (key.recomputes_first) continue;  // with all concessions, all units recompute
    least = std::min(least, sum_of(lacking_live(key)));
    if (least == 0) break;
  }
  return least;
}

// If several are equal, takes the first, which needs the least of a drive. An order that saves a
// little of the device is not taken if it lacks more of the host.
StepPlan HomeChoice::smallest_plan() const {
  const std::vector<PolicyKey> keys = extremes();
  std::optional<PolicyKey> smallest;
  for (const MicroBatchOrder order : orders()) {
    std::optional<PolicyKey> of_order;
    for (const PolicyKey& key : keys) {
      if (key.order != order || key.recomputes_first) continue;
      if (!of_order.has_value() || lacking_live(key) < lacking_live(*of_order)) of_order = key;
    }
    const bool is_smaller =
        !smallest.has_value() || sum_of(lacking_live(*of_order)) < sum_of(lacking_live(*smallest));
    if (is_smaller) smallest = of_order;
  }
  return least(policy_of(*smallest));
}

}  // namespace terrace
