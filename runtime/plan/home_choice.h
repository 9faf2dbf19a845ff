#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "base/function_ref.h"
#include "runtime/plan/auto_placement.h"

namespace terrace {

// Prefetch distance of the plans that homes are chosen with, where the user leaves it open.
inline constexpr std::int32_t kUsualLookahead = 3;

// Chooses a home for every state of a step, fastest tier first: starts with everything in the
// compute tier and gives way unit by unit, no further than needed.
class HomeChoice {
 public:
  // Borrows all.
  HomeChoice(const StepModel& model, const PlacementRequest& request, const TierBudgets& budgets)
      : model_(model), request_(request), budgets_(budgets) {}

  // Returns the plan with the fewest concessions, in the order of micro-batches that moves less
  // where that is open; none if no plan fits.
  std::optional<StepPlan> choose() const;
  StepPlan compiled(StepPolicy policy) const;

  // For refusals: the plan that is short of the fewest bytes of the device, and then of the host,
  // among those with all concessions of a tier or none. Its program does not run.
  StepPlan smallest_plan() const;
  // Returns the bytes by which that plan is too large, all tiers together.
  std::size_t lacking_bytes() const;
  // Returns a lower bound of them in a fraction of the time: of what must be live, not packed.
  std::size_t lacking_live_bytes() const;

 private:
  // One thing that gives way: a state of one unit moves to a slower tier, or is not kept at all.
  struct Concession {
    std::int32_t unit;
    std::function<void(UnitHomes&)> apply;
  };

  Tier compute_tier() const { return request_.unified ? Tier::kHost : Tier::kDevice; }
  // Micro-batches one after the other, where nothing else is asked for or makes sense.
  bool has_one_order() const;
  MicroBatchOrder smallest_order() const;

  // A lower bound for micro-batch-major order: its programs are the large ones.
  double least_moved_of_other_order() const;
  std::optional<StepPlan> try_order(MicroBatchOrder order) const;
  std::optional<StepPlan> with_fewest_concessions(MicroBatchOrder order) const;
  bool may_fit(const StepPolicy& policy, Tier tier) const;
  std::optional<std::size_t> fewest_of(Tier tier, FunctionRef<bool(std::size_t)> passes) const;

  StepPolicy fastest(MicroBatchOrder order) const;
  StepPolicy policy_with(std::size_t on_device, std::size_t on_host, MicroBatchOrder order) const;
  std::array<std::pair<std::size_t, std::size_t>, 4> extremes() const;
  std::vector<Concession> concessions(Tier tier) const;
  void add(std::vector<Concession>& list, Tier from, StateClass state) const;
  void add_recompute(std::vector<Concession>& list) const;
  StepPlan least(StepPolicy policy) const;

  const StepModel& model_;
  const PlacementRequest& request_;
  const TierBudgets& budgets_;
};

}  // namespace terrace
