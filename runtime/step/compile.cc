#include "runtime/step/compile.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

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

// A step with its movement, of which budgets decide only the fetch plan: it is made once, and every
// share of the budgets is tried on it. Borrows all.
class DraftedStep {
 public:
  DraftedStep(const StepModel& model, const StepPolicy& policy)
      : model_(model),
        policy_(policy),
        stages_(add_recompute(model, policy, schedule_step(model, policy))),
        draft_(add_movement(model, policy, stages_)) {}

  const Draft& draft() const { return draft_; }

  FetchPlan fetches(const TierBudgets& budgets) const {
    return plan_fetches(model_, policy_, stages_, draft_, budgets);
  }
  LinearDraft linear(const FetchPlan& plan) const {
    return linearize(draft_, static_cast<std::int32_t>(stages_.size()), plan);
  }

 private:
  const StepModel& model_;
  const StepPolicy& policy_;
  std::vector<Stage> stages_;
  Draft draft_;
};

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
Program with_slack(const Program& narrow, const DraftedStep& step, LinearDraft linear,
                   const TierBudgets& budgets, const Program* base) {
  Program program = narrow;
  Slack slack{};
  TierBudgets enough;
  for (const Tier tier : {Tier::kDevice, Tier::kHost}) {
    const auto t = static_cast<std::size_t>(tier);
    if (!budgets.at(t).has_value()) continue;
    enough.at(t) = budgets.at(t);
    for (const std::int32_t stages : kSlackStages) {
      slack.at(t) = stages;
      set_slack(step.draft(), slack, linear);
      if (!live_over_budget(step.draft(), linear, budgets)) {
        std::optional<Program> wider = place_within(step.draft(), linear, base, {budgets, enough});
        if (wider.has_value()) {
          program = std::move(*wider);
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
  const DraftedStep step(model, policy);
  const auto linear_with = [&](double share) {
    return step.linear(step.fetches(share_of(budgets, share)));
  };
  const LinearDraft least = linear_with(kBudgetShares.back());
  if (fits_tier(step.draft(), least, tier, budgets)) return true;
  // Prefetching moves what passes through the host to other times, so there it may help, as it may
  // where only the packing is too high. In the compute tier it only adds to what lives.
  const bool only_adds = tier == policy.compute_tier();
  if (only_adds && live_over_budget(step.draft(), least, tier, budgets)) return false;
  return fits_tier(step.draft(), linear_with(kBudgetShares.front()), tier, budgets);
}

std::array<std::size_t, kTierCount> least_live_bytes(const StepModel& model,
                                                     const StepPolicy& policy) {
  const DraftedStep step(model, policy);
  TierBudgets nothing;
  nothing.fill(0);
  const LinearDraft linear = step.linear(step.fetches(nothing));
  std::array<std::size_t, kTierCount> bytes{};
  for (const Tier tier : kTiers) {
    bytes.at(static_cast<std::size_t>(tier)) = live_peak(step.draft(), linear, tier);
  }
  return bytes;
}

Program compile_least(const StepModel& model, const StepPolicy& policy,
                      const TierBudgets& budgets) {
  const DraftedStep step(model, policy);
  return place(step.draft(), step.linear(step.fetches(share_of(budgets, 0))), nullptr, budgets);
}

Program compile_step(const StepModel& model, const StepPolicy& policy, const TierBudgets& budgets,
                     const Program* base) {
  TERRACE_CHECK_EQ(model.units.size(), policy.homes.size());
  const DraftedStep step(model, policy);
  Program program;
  for (const double share : kBudgetShares) {
    const FetchPlan plan = step.fetches(share_of(budgets, share));
    LinearDraft linear = step.linear(plan);
    const bool is_last = share == kBudgetShares.back();
    if (!is_last && live_over_budget(step.draft(), linear, budgets)) continue;
    std::optional<Program> placed = place_within(step.draft(), linear, base, {budgets, budgets});
    if (placed.has_value()) {
      program = with_slack(*placed, step, std::move(linear), budgets, base);
      break;
    }
    if (is_last) program = place(step.draft(), linear, base, budgets);
  }
  program.units = static_cast<std::int32_t>(model.unit_count());
  program.micro_batches = policy.micro_batches;
  add_edges(program);
  return program;
}

}  // namespace terrace
