#pragma once

#include <array>
#include <memory>
#include <optional>

#include "runtime/engine/model_runtime.h"
#include "runtime/plan/footprints.h"
#include "runtime/train/rank_group.h"

namespace terrace {

// Finds the least budgets with which the planner accepts a step. Every rank has one, and all do the
// same calls: a budget is accepted where all ranks' plans fit it.
class BudgetSearch {
 public:
  // Borrows both.
  BudgetSearch(const ModelRuntimeOptions& options, const RankGroup& ranks)
      : options_(options), ranks_(ranks), footprints_(std::make_shared<Footprints>()) {}

  // Returns this rank's plan of a trial, or nothing where the plan of some rank does not fit.
  std::optional<TierPlan> try_plan(const TierBudgets& budgets) const;

  // Returns the least budget of a tier, given the others: the planner accepts it, and refuses
  // clearly_less() of it. It accepts `budgets` without a limit on this tier.
  std::size_t least(TierBudgets budgets, Tier tier) const;

  // Raises budgets in the tiers named until the step fits, the fastest tier first, each to the
  // least that suffices given the tiers before it; the tiers after it have no limit until then.
  // Returns nothing where the tiers that are not named are too small.
  std::optional<TierBudgets> raise(const TierBudgets& budgets,
                                   const std::array<bool, kTierCount>& tiers) const;

 private:
  const ModelRuntimeOptions& options_;
  const RankGroup& ranks_;
  const std::shared_ptr<Footprints> footprints_;
};

}  // namespace terrace
