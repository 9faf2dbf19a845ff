#pragma once

#include <array>
#include <map>
#include <memory>
#include <optional>

#include "runtime/engine/model_runtime.h"
#include "runtime/plan/footprints.h"
#include "runtime/train/rank_group.h"

namespace terrace {

// Finds the least budgets with which the planner accepts a step. Every rank has one of these
// objects, and all make the same calls: a budget is accepted where all ranks' plans fit it.
class BudgetSearch {
 public:
  // Borrows both.
  BudgetSearch(const ModelRuntimeOptions& options, const RankGroup& ranks)
      : options_(options), ranks_(ranks) {}

  // Returns this rank's plan with the given budgets, or nothing where the plan of some rank does
  // not fit.
  std::optional<TierPlan> try_plan(const TierBudgets& budgets);

  // Returns the least budget of a tier, given the other budgets: the planner accepts it, and
  // refuses clearly_less() of it. The planner must accept `budgets` without a limit on this tier.
  std::size_t least(TierBudgets budgets, Tier tier);

  // Raises the budgets of the named tiers until the step fits, the fastest tier first. Each is
  // raised to the least that suffices given the tiers before it; the named tiers after it have no
  // limit until then. Returns nothing where the tiers that are not named are too small.
  std::optional<TierBudgets> raise(const TierBudgets& budgets,
                                   const std::array<bool, kTierCount>& tiers);

 private:
  const ModelRuntimeOptions& options_;
  const RankGroup& ranks_;
  // By the number of experts in a group, which may depend on the budgets.
  std::map<std::int64_t, std::shared_ptr<Footprints>> footprints_;
};

}  // namespace terrace
