#include "runtime/step/compile.h"

#include <algorithm>
#include <array>

#include "base/check.h"
#include "runtime/step/hazards.h"
#include "runtime/step/residency.h"
#include "runtime/step/schedule.h"
#include "runtime/step/verify.h"

namespace terrace {
namespace {

// Live bytes within the budget may still be packed above it: then less is kept and prefetched.
constexpr std::array<double, 8> kBudgetShares = {1.0, 0.96, 0.92, 0.88, 0.8, 0.7, 0.5, 0.0};

// What is tried of slack, the most first.
constexpr std::array<std::int32_t, 6> kSlackStages = {32, 16, 8, 4, 2, 1};

TierBudgets share_of(const TierBudgets& budgets, double share) {
  TierBudgets shares = budgets;
  for (auto& budget : shares) {
    if (budget.has_value()) {
      budget = static_cast<std::size_t>(static_cast<double>(*budget) * share);
    }
  }
  return shares;
}

// Charges what slack has added to the account of its own.
void charge_slack(Program& wider, const Program& narrow) {
  for (const Tier tier : {Tier::kDevice, Tier::kHost}) {
    TierUse& use = wider.use.at(static_cast<std::size_t>(tier));
    const TierUse& needed = narrow.use_of(tier);
    use.accounts = needed.accounts;
    use.accounts.at(static_cast<std::size_t>(Account::kSlack)) =
        use.live_bytes - std::min(use.live_bytes, needed.live_bytes);
  }
}

// The program placed anew with as much slack as the budgets leave room for. Where a tier has no
// budget nothing says what may be used: none. Slack takes what is there, so it is packed no lower
// than the budget.
Program with_slack(const Program& narrow, const Draft& draft, const TierBudgets& budgets,
                   const Program* base) {
  Program program = narrow;
  Slack slack{};
  TierBudgets enough;
  for (const Tier tier : {Tier::kDevice, Tier::kHost}) {
    const auto t = static_cast<std::size_t>(tier);
    if (!budgets.at(t).has_value()) continue;
    enough.at(t) = budgets.at(t);
    for (const std::int32_t stages : kSlackStages) {
      slack.at(t) = stages;
      const LinearDraft linear = linearize(draft, slack);
      if (!live_over_budget(draft, linear, budgets)) {
        Program wider = place(draft, linear, base, enough);
        if (tiers_over_budget(wider, budgets).empty()) {
          program = std::move(wider);
          break;
        }
      }
      slack.at(t) = 0;
    }
    if (slack.at(t) == 0) enough.at(t).reset();
  }
  charge_slack(program, narrow);
  return program;
}

}  // namespace

bool can_fit(const StepModel& model, const StepPolicy& policy, const TierBudgets& budgets,
             Tier tier) {
  TERRACE_CHECK_EQ(model.units.size(), policy.homes.size());
  const std::vector<Stage> stages = add_recompute(schedule_step(model, policy), policy);
  // The least first. That it does not fit is not all: prefetching changes what lives together.
  return std::ranges::any_of(
      std::array{kBudgetShares.back(), kBudgetShares.front()}, [&](double share) {
        const FetchPlan plan = plan_fetches(model, policy, stages, share_of(budgets, share));
        const Draft draft = add_movement(model, policy, stages, plan);
        return fits_tier(draft, linearize(draft), tier, budgets);
      });
}

std::array<std::size_t, kTierCount> least_live_bytes(const StepModel& model,
                                                     const StepPolicy& policy) {
  const std::vector<Stage> stages = add_recompute(schedule_step(model, policy), policy);
  TierBudgets nothing;
  nothing.fill(0);
  const FetchPlan plan = plan_fetches(model, policy, stages, nothing);
  const Draft draft = add_movement(model, policy, stages, plan);
  const LinearDraft linear = linearize(draft);
  std::array<std::size_t, kTierCount> bytes{};
  for (const Tier tier : kTiers) {
    bytes.at(static_cast<std::size_t>(tier)) = live_peak(draft, linear, tier);
  }
  return bytes;
}

Program compile_least(const StepModel& model, const StepPolicy& policy,
                      const TierBudgets& budgets) {
  const std::vector<Stage> stages = add_recompute(schedule_step(model, policy), policy);
  const FetchPlan plan = plan_fetches(model, policy, stages, share_of(budgets, 0));
  const Draft draft = add_movement(model, policy, stages, plan);
  return place(draft, linearize(draft), nullptr, budgets);
}

Program compile_step(const StepModel& model, const StepPolicy& policy, const TierBudgets& budgets,
                     const Program* base) {
  TERRACE_CHECK_EQ(model.units.size(), policy.homes.size());
  const std::vector<Stage> stages = add_recompute(schedule_step(model, policy), policy);
  Program program;
  for (const double share : kBudgetShares) {
    const FetchPlan plan = plan_fetches(model, policy, stages, share_of(budgets, share));
    const Draft draft = add_movement(model, policy, stages, plan);
    const LinearDraft linear = linearize(draft);
    const bool is_last = share == kBudgetShares.back();
    if (!is_last && live_over_budget(draft, linear, budgets)) continue;
    program = place(draft, linear, base, budgets);
    if (!tiers_over_budget(program, budgets).empty()) continue;
    program = with_slack(program, draft, budgets, base);
    break;
  }
  program.units = static_cast<std::int32_t>(model.unit_count());
  program.micro_batches = policy.micro_batches;
  add_edges(program);
  return program;
}

}  // namespace terrace
