#include "runtime/step/compile.h"

#include "base/check.h"
#include "runtime/step/hazards.h"
#include "runtime/step/residency.h"
#include "runtime/step/schedule.h"
#include "runtime/step/verify.h"

namespace terrace {
namespace {

// Live bytes within the budget may still be packed above it: then less is kept and prefetched.
constexpr std::array<double, 8> kBudgetShares = {1.0, 0.96, 0.92, 0.88, 0.8, 0.7, 0.5, 0.0};

TierBudgets share_of(const TierBudgets& budgets, double share) {
  TierBudgets shares = budgets;
  for (auto& budget : shares) {
    if (budget.has_value()) {
      budget = static_cast<std::size_t>(static_cast<double>(*budget) * share);
    }
  }
  return shares;
}

}  // namespace

Program compile_step(const StepModel& model, const StepPolicy& policy, const TierBudgets& budgets,
                     const Program* base) {
  TERRACE_CHECK_EQ(model.units.size(), policy.homes.size());
  const std::vector<Stage> stages = add_recompute(schedule_step(model, policy), policy);
  Program program;
  for (const double share : kBudgetShares) {
    const FetchPlan plan = plan_fetches(model, policy, stages, share_of(budgets, share));
    program = place(add_movement(model, policy, stages, plan), base);
    if (tiers_over_budget(program, budgets).empty()) break;
  }
  program.units = static_cast<std::int32_t>(model.unit_count());
  program.micro_batches = policy.micro_batches;
  add_edges(program);
  return program;
}

}  // namespace terrace
