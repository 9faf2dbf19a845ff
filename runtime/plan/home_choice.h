#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

#include "base/function_ref.h"
#include "runtime/plan/auto_placement.h"
#include "runtime/plan/footprints.h"

namespace terrace {

// The prefetch distance of the plans that homes are chosen with, where the user leaves it open.
inline constexpr std::int32_t kUsualLookahead = 3;

// Chooses a home for every state of a step, fastest tier first: starts with everything in the
// compute tier and gives way state by state, no further than needed.
class HomeChoice {
 public:
  // Borrows all. `footprints` are of this model and request.
  HomeChoice(const StepModel& model, const PlacementRequest& request, const TierBudgets& budgets,
             Footprints& footprints)
      : model_(model), request_(request), budgets_(budgets), footprints_(footprints) {}

  // Returns the plan with the fewest concessions, in the order of micro-batches that moves less if
  // the order is open. If no search finds one, returns the plan of the first policy that
  // find_least_policy() offers; none if no plan fits.
  std::optional<StepPlan> choose() const;
  StepPlan compiled(StepPolicy policy) const;
  // Returns the plan of a policy with nothing kept or prefetched, its program without edges.
  StepPlan least(StepPolicy policy) const;

  // Offers the policies with all concessions of a tier or none, in either order of micro-batches,
  // whose programs fit with nothing kept or prefetched, until one is taken. A program that fits in
  // this way fits every larger budget. Within an order, the policies that move the least come
  // first.
  void find_least_policy(FunctionRef<bool(StepPolicy&)> takes) const;
  // Returns the ledger of the first of these policies, without accounts; none if there is no such
  // policy. Compiles nothing. Where a tier has no budget, its peak is only the live bytes.
  std::optional<Ledger> least_ledger() const;
  // Returns whether choose() finds a plan, and takes much less time.
  bool can_choose() const;

  // Returns the smallest plan, for refusals. Among the plans with all concessions of a tier or none
  // it is the one that lacks the fewest bytes of the device, then of the host, and then of the
  // drive. It has the order of micro-batches that lacks the fewest bytes of all tiers.
  StepPlan smallest_plan() const;
  // Returns a lower bound of the bytes by which that plan is too large, all tiers together. It
  // takes a fraction of the time, because it counts live bytes and packs nothing.
  std::size_t lacking_live_bytes() const;

 private:
  Tier compute_tier() const { return request_.unified ? Tier::kHost : Tier::kDevice; }
  // Returns whether only one order of micro-batches is possible: one after the other, where nothing
  // else is asked for or makes sense.
  bool has_one_order() const;
  // Returns every order that may be taken, the one that moves less first.
  std::vector<MicroBatchOrder> orders() const;
  // Returns the order whose programs have fewer ops. It is tried first, because its plan may make
  // the other order unnecessary.
  MicroBatchOrder quicker_order() const;

  // Returns whether a plan in this order may be better than the best one in the other order.
  bool may_be_better(MicroBatchOrder order, const Program& best) const;
  std::optional<StepPlan> try_order(MicroBatchOrder order) const;
  // Returns the policies without concessions from which the search for the fewest concessions
  // starts.
  std::vector<PolicyKey> starts(MicroBatchOrder order) const;
  // Offers `key` with the fewest concessions with which the step may fit, and then with more, until
  // one is accepted. Returns whether one is.
  bool find_fewest_concessions(PolicyKey key, FunctionRef<bool(const PolicyKey&)> accepts) const;
  std::optional<std::size_t> fewest_of(Tier tier, PolicyKey key,
                                       std::size_t PolicyKey::* count) const;
  bool may_fit(const PolicyKey& key, Tier tier) const;

  StepPolicy fastest(const PolicyKey& key) const;
  StepPolicy policy_of(const PolicyKey& key) const;
  // Returns the keys with all concessions of a tier or none, on the device and on the host, in
  // every order, the fewest first. For a trial, in which one that fits is as good as another, the
  // keys of the quicker order come first.
  std::vector<PolicyKey> extremes(bool is_trial = false) const;
  PolicyKey shortened(PolicyKey key) const;
  // Returns whether even a step of fewer micro-batches does not fit the compute tier. If not, the
  // step itself may fit or not.
  bool needs_too_much(const PolicyKey& key) const;
  // Returns whether the tiers named have room for the step with nothing kept or prefetched.
  bool fits_least(const PolicyKey& key, std::span<const Tier> tiers) const;
  const std::array<std::size_t, kTierCount>& live_bytes(const PolicyKey& key) const;
  // Returns a lower bound of the lacking bytes, by tier.
  std::array<std::size_t, kTierCount> lacking_live(const PolicyKey& key) const;
  // Returns why the policy of this key is the one with the fewest concessions.
  PlanReasons reasons_of(const PolicyKey& key) const;
  TierPressure pressure_on(Tier tier, const PolicyKey& key, std::size_t PolicyKey::* count) const;
  std::vector<Concession> concessions(Tier tier, const PolicyKey& key) const;

  const StepModel& model_;
  const PlacementRequest& request_;
  const TierBudgets& budgets_;
  Footprints& footprints_;
};

}  // namespace terrace
