#include "runtime/step/compile.h"

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/check.h"
#include "runtime/step/hazards.h"
#include "runtime/step/residency.h"
#include "runtime/step/schedule.h"

namespace terrace {
namespace {

// The shares of the budgets that are tried in turn. Live bytes within the budget may still be
// packed above it. Then less is kept and prefetched.
constexpr std::array<double, 8> kBudgetShares = {1.0, 0.96, 0.92, 0.88, 0.8, 0.7, 0.5, 0.0};

// The shares of the device's budget that are tried where the host is too small even with nothing
// kept or prefetched. Using the device may let the bytes that pass through the host come at better
// times. Using all of the device may not, so parts of it are tried too. Steps of many ops are left
// out: there each share takes long, and the bytes that pass through the host are a small part.
constexpr std::size_t kOpsOfDeviceShares = 20'000;
constexpr std::array<double, 9> kDeviceShares = {1.0, 0.95, 0.9, 0.85, 0.8, 0.7, 0.6, 0.5, 0.35};

// The slacks that are tried, largest first.
constexpr std::array<std::int32_t, 6> kSlackTasks = {32, 16, 8, 4, 2, 1};

// A step with its movement. The budgets decide only its fetch plan, so the step is drafted once and
// every share of the budgets is tried on it. Borrows the model and the policy.
class DraftedStep {
 public:
  DraftedStep(const StepModel& model, const StepPolicy& policy, bool has_names)
      : lookahead_(policy.lookahead),
        tasks_(add_recompute(model, policy,
                             schedule_step(model, policy, listed_micro_batches(model, policy)))),
        draft_(add_movement(model, policy, tasks_, has_names)),
        planner_(model, policy, tasks_, draft_) {}

  const Draft& draft() const { return draft_; }

  // Returns the ops in their order, with nothing kept or prefetched in any tier.
  LinearDraft least_linear() {
    TierBudgets nothing;
    nothing.fill(0);
    return linear(nothing);
  }

  // Returns the ops in their order, with as much kept and prefetched as these budgets leave room
  // for. If loads would reach further back than a micro-batch, so that micro-batches could not be
  // repeated, a smaller lookahead is taken.
  LinearDraft linear(const TierBudgets& budgets) {
    for (std::int32_t lookahead = lookahead_;; lookahead /= 2) {
      LinearDraft linear = planned(budgets, lookahead);
      if (!draft_.period.has_value() || linear.repeated.has_value()) return linear;
      // Loads that each belong to the task that needs them are the same in alike micro-batches.
      TERRACE_CHECK_LT(0, lookahead);
    }
  }
  // Returns the notes of the loads of the list that was made last.
  const std::vector<LoadNote>& notes() const { return notes_; }

 private:
  LinearDraft planned(const TierBudgets& budgets, std::int32_t lookahead) {
    FetchPlan plan = planner_.plan(budgets, lookahead);
    LinearDraft linear = linearize(draft_, static_cast<std::int32_t>(tasks_.size()), plan);
    linear.repeated = find_repeated_ops(draft_, linear);
    notes_ = std::move(plan.notes);
    return linear;
  }

  const std::int32_t lookahead_;
  const std::vector<Task> tasks_;
  const Draft draft_;
  FetchPlanner planner_;
  std::vector<LoadNote> notes_;
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

// Returns the budgets with shares of the device's budget alone. Without a device budget there is
// nothing to try.
std::vector<TierBudgets> device_shares_of(const Draft& draft, const TierBudgets& budgets) {
  std::vector<TierBudgets> shares;
  if (draft.ops.size() > kOpsOfDeviceShares) return shares;
  const auto& device = budgets.at(static_cast<std::size_t>(Tier::kDevice));
  if (!device.has_value()) return shares;
  for (const double share : kDeviceShares) {
    shares.push_back(budgets);
    shares.back().at(static_cast<std::size_t>(Tier::kDevice)) =
        static_cast<std::size_t>(static_cast<double>(*device) * share);
  }
  return shares;
}

// Charges to the slack account the bytes that slack has added.
void charge_slack(TierUse& wider, const TierUse& needed) {
  wider.accounts = needed.accounts;
  wider.accounts.at(static_cast<std::size_t>(Account::kSlack)) =
      wider.live_bytes - std::min(wider.live_bytes, needed.live_bytes);
}

// Places a tier anew with the most slack that its budget leaves room for. Returns whether there is
// room for any. Slack takes free space anyway, so the tier is packed no lower than the budget.
bool widen(ArenaPacking& packing, const Draft& draft, LinearDraft& linear, Tier tier,
           const TierBudgets& budgets) {
  const auto& budget = budgets.at(static_cast<std::size_t>(tier));
  for (const std::int32_t tasks : kSlackTasks) {
    set_slack(draft, tier, tasks, linear);
    if (live_over_budget(draft, linear, tier, budgets)) continue;
    if (packing.pack_within(tier, budget)) return true;
  }
  set_slack(draft, tier, 0, linear);
  return false;
}

bool fits_in_memory(ArenaPacking& packing, const TierBudgets& budgets) {
  return std::ranges::all_of(std::array{Tier::kDevice, Tier::kHost}, [&](Tier tier) {
    return packing.pack_within(tier, budgets.at(static_cast<std::size_t>(tier)));
  });
}

// Packs the tiers in memory, whether they fit their budgets or not.
ArenaPacking place_whatever(const Draft& draft, const LinearDraft& linear, const Program* base,
                            const TierBudgets& budgets) {
  ArenaPacking packing(draft, linear, base);
  for (const Tier tier : {Tier::kDevice, Tier::kHost}) {
    packing.pack(tier, budgets.at(static_cast<std::size_t>(tier)));
  }
  return packing;
}

// Gives each tier in memory the slack that there is room for. A tier without a budget gets none,
// because nothing says how much of it may be used. If one tier gets slack, another that gets none
// is packed as low as possible.
void add_slack(ArenaPacking& packing, const Draft& draft, LinearDraft& linear,
               const TierBudgets& budgets) {
  constexpr std::array<Tier, 2> kInMemory = {Tier::kDevice, Tier::kHost};
  std::array<bool, kTierCount> is_wider{};
  for (const Tier tier : kInMemory) {
    const auto t = static_cast<std::size_t>(tier);
    const TierUse needed = packing.use(tier);
    is_wider.at(t) = budgets.at(t).has_value() && widen(packing, draft, linear, tier, budgets);
    if (is_wider.at(t)) charge_slack(packing.use(tier), needed);
  }
  if (std::ranges::find(is_wider, true) == is_wider.end()) return;
  for (const Tier tier : kInMemory) {
    if (!is_wider.at(static_cast<std::size_t>(tier))) packing.pack(tier);
  }
}

// Returns for each unit the first unit that computes the same.
std::vector<std::int32_t> like_units(const StepModel& model) {
  std::vector<std::int32_t> firsts;
  std::vector<std::int32_t> like;
  for (std::int32_t u = 0; u <= model.last_unit(); ++u) {
    const auto found = std::ranges::find_if(firsts, [&](std::int32_t first) {
      return computes_alike(model.units[static_cast<std::size_t>(first)],
                            model.units[static_cast<std::size_t>(u)]);
    });
    like.push_back(found == firsts.end() ? u : *found);
    if (like.back() == u) firsts.push_back(u);
  }
  return like;
}

void finish(Program& program, const StepModel& model, const StepPolicy& policy) {
  program.units = static_cast<std::int32_t>(model.unit_count());
  program.groups = model.group_count();
  program.like_units = like_units(model);
  program.micro_batches = policy.micro_batches;
}

// The arguments of compile_step().
struct CompileRequest {
  const StepModel& model;
  const StepPolicy& policy;
  const TierBudgets& budgets;
  const Program* base;
};

// Returns the program that uses these shares of the budgets for keeping and prefetching; none if it
// does not fit the budgets.
std::optional<Program> placed_within(DraftedStep& step, const TierBudgets& shares,
                                     const CompileRequest& request) {
  LinearDraft linear = step.linear(shares);
  if (live_over_budget(step.draft(), linear, request.budgets)) return std::nullopt;
  ArenaPacking packing(step.draft(), linear, request.base);
  if (!fits_in_memory(packing, request.budgets)) return std::nullopt;
  add_slack(packing, step.draft(), linear, request.budgets);
  return packing.program();
}

Program placed(const CompileRequest& request, bool has_names) {
  TERRACE_CHECK_EQ(request.model.groups.size(), request.policy.homes.size());
  TERRACE_CHECK_EQ(request.model.units.size(), request.policy.activations.size());
  DraftedStep step(request.model, request.policy, has_names);
  std::optional<Program> program;
  for (const double share : kBudgetShares) {
    if (program.has_value()) break;
    program = placed_within(step, share_of(request.budgets, share), request);
  }
  for (const TierBudgets& shares : device_shares_of(step.draft(), request.budgets)) {
    if (program.has_value()) break;
    program = placed_within(step, shares, request);
  }
  if (!program.has_value()) {
    const LinearDraft linear = step.linear(share_of(request.budgets, kBudgetShares.back()));
    program = place_whatever(step.draft(), linear, request.base, request.budgets).program();
  }
  finish(*program, request.model, request.policy);
  if (has_names) program->loads = step.notes();
  return std::move(*program);
}

}  // namespace

bool fits_with_prefetch(const StepModel& model, const StepPolicy& policy,
                        const TierBudgets& budgets, Tier tier) {
  DraftedStep step(model, policy, false);
  if (fits_tier(step.draft(), step.linear(budgets), tier, budgets)) return true;
  return std::ranges::any_of(device_shares_of(step.draft(), budgets),
                             [&](const TierBudgets& shares) {
                               return fits_tier(step.draft(), step.linear(shares), tier, budgets);
                             });
}

struct LeastStep::Content {
  Content(const StepModel& model, const StepPolicy& with)
      : policy(with), step(model, policy, false), linear(step.least_linear()) {}

  StepPolicy policy;
  DraftedStep step;
  LinearDraft linear;
};

LeastStep::LeastStep(const StepModel& model, const StepPolicy& policy)
    : content_(std::make_unique<const Content>(model, policy)) {}

LeastStep::~LeastStep() = default;

std::array<std::size_t, kTierCount> LeastStep::live_bytes() const {
  std::array<std::size_t, kTierCount> bytes{};
  for (const Tier tier : kTiers) {
    bytes.at(static_cast<std::size_t>(tier)) =
        live_peak(content_->step.draft(), content_->linear, tier);
  }
  return bytes;
}

std::size_t LeastStep::needed_bytes(Tier tier) const {
  const Draft& draft = content_->step.draft();
  std::size_t persistent = 0;
  for (const Buffer& buffer : draft.buffers) {
    if (buffer.tier == tier && buffer.life == Life::kPersistent) persistent += buffer.size_bytes;
  }
  std::size_t most = 0;
  std::vector<BufferId> used;
  for (const DraftOp& op : draft.ops) {
    if (op.phase == Phase::kLoad || op.phase == Phase::kLateLoad) continue;
    used.clear();
    for (const Access& access : draft.all(op)) {
      const Buffer& buffer = draft.buffers.at(access.buffer);
      if (buffer.tier == tier && buffer.life != Life::kPersistent) used.push_back(access.buffer);
    }
    std::ranges::sort(used);
    used.erase(std::ranges::unique(used).begin(), used.end());
    std::size_t bytes = 0;
    for (const BufferId buffer : used) bytes += draft.buffers.at(buffer).size_bytes;
    most = std::max(most, bytes);
  }
  return persistent + most;
}

std::size_t LeastStep::packed_bytes(Tier tier, std::size_t enough_bytes) const {
  return terrace::packed_bytes(content_->step.draft(), content_->linear, tier, enough_bytes);
}

std::array<std::size_t, kTierCount> least_live_bytes(const StepModel& model,
                                                     const StepPolicy& policy) {
  return LeastStep(model, policy).live_bytes();
}

Program compile_least(const StepModel& model, const StepPolicy& policy,
                      const TierBudgets& budgets) {
  DraftedStep step(model, policy, true);
  const LinearDraft linear = step.least_linear();
  Program program = place_whatever(step.draft(), linear, nullptr, budgets).program();
  finish(program, model, policy);
  return program;
}

Program place_step(const StepModel& model, const StepPolicy& policy, const TierBudgets& budgets,
                   const Program* base) {
  return placed({model, policy, budgets, base}, false);
}

Program compile_step(const StepModel& model, const StepPolicy& policy, const TierBudgets& budgets,
                     const Program* base) {
  Program program = placed({model, policy, budgets, base}, true);
  if (program.repetition.times == 1) add_edges(program);
  return program;
}

}  // namespace terrace
