#include "runtime/train/budget_search.h"

#include <algorithm>

#include "base/bytes.h"
#include "base/check.h"
#include "base/error.h"
#include "runtime/plan/least_budget.h"

namespace terrace {
namespace {

constexpr std::size_t kStep = 4 * kKiB;
constexpr std::size_t kUnlimited = std::size_t{1} << 60;

TierBudgets with(TierBudgets budgets, Tier tier, std::optional<std::size_t> bytes) {
  budgets.at(static_cast<std::size_t>(tier)) = bytes;
  return budgets;
}

}  // namespace

std::optional<TierPlan> BudgetSearch::try_plan(const TierBudgets& budgets) {
  ModelRuntimeOptions options = options_;
  options.budgets = budgets;
  options.placement.is_trial = true;
  std::shared_ptr<Footprints>& footprints = footprints_[experts_per_group_of(options)];
  if (footprints == nullptr) footprints = std::make_shared<Footprints>();
  options.placement.footprints = footprints;
  options.shared_plans = nullptr;  // it would keep the plans of all trials
  std::optional<TierPlan> plan;
  try {
    plan = plan_model(options);
  } catch (const OutOfMemory&) {
    plan.reset();
  }
  if (ranks_.any(!plan.has_value())) plan.reset();
  return plan;
}

std::size_t BudgetSearch::least(TierBudgets budgets, Tier tier) {
  const auto accepted = [&](std::size_t bytes) {
    return try_plan(with(budgets, tier, bytes)).has_value();
  };
  const std::optional<TierPlan> known = try_plan(budgets);
  const std::optional<TierPlan> unlimited =
      known.has_value() ? std::nullopt : try_plan(with(budgets, tier, std::nullopt));
  TERRACE_CHECK(known.has_value() || unlimited.has_value());
  const Ledger& ledger = known.has_value() ? known->ledger : unlimited->ledger;
  std::size_t enough = round_up_budget(
      static_cast<std::size_t>(ranks_.largest(static_cast<std::int64_t>(ledger[tier].peak_bytes))));
  while (!accepted(enough)) {
    TERRACE_CHECK_LT(enough, kUnlimited);
    enough = round_up_budget(enough + enough / 16 + kStep);
  }
  const std::size_t least = least_budget(enough, accepted);
  for (const auto& [experts, footprints] : footprints_) footprints->forget_step();
  return least;
}

std::optional<TierBudgets> BudgetSearch::raise(const TierBudgets& budgets,
                                               const std::array<bool, kTierCount>& tiers) {
  TierBudgets raised = budgets;
  for (const Tier tier : kTiers) {
    if (tiers.at(static_cast<std::size_t>(tier))) raised = with(raised, tier, std::nullopt);
  }
  if (!try_plan(raised).has_value()) return std::nullopt;
  for (const Tier tier : kTiers) {
    const std::optional<std::size_t>& asked = budgets.at(static_cast<std::size_t>(tier));
    if (!tiers.at(static_cast<std::size_t>(tier)) || !asked.has_value()) continue;
    raised = with(raised, tier, asked);
    if (!try_plan(raised).has_value()) raised = with(raised, tier, least(raised, tier));
  }
  return raised;
}

}  // namespace terrace
