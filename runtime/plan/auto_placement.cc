#include "runtime/plan/auto_placement.h"

#include <algorithm>
#include <array>
#include <functional>
#include <future>
#include <optional>
#include <utility>

#include "base/check.h"
#include "runtime/plan/footprints.h"
#include "runtime/plan/home_choice.h"
#include "runtime/plan/refusal.h"
#include "runtime/plan/shared_plans.h"
#include "runtime/plan/update_split.h"
#include "runtime/step/hazards.h"
#include "runtime/step/simulate.h"
#include "runtime/step/verify.h"

namespace terrace {
namespace {

// The choices that are tried: the number of units whose updates are deferred where none must be, in
// parts of all units, and the lookaheads where the user leaves them open. Homes and order are
// chosen with the policy's own number, and the first lookahead.
constexpr std::int32_t kDeferredParts = 4;
constexpr std::array<std::int32_t, 5> kLookaheads = {kUsualLookahead, 1, 2, 6, 12};
constexpr int kSimulatedSteps = 4;
// The largest number of ops of a program that is tuned. A step with more belongs to a model with
// hundreds of billions of parameters. It takes hours on its machine, and a second to plan with each
// policy that is tried.
constexpr std::size_t kTunedOpsMax = 200'000;
// The largest number of ops of all programs that are compiled to try every lookahead with every
// number of deferred updates. For larger programs first the one is chosen and then the other.
constexpr std::size_t kPairedOpsMax = 500'000;
constexpr double kWorthwhile = 0.99;
// The largest number of units that leave the device to make room for streamed updates.
constexpr int kUnitsForStreaming = 2;

class Planner {
 public:
  Planner(const StepModel& model, const PlacementRequest& request, const TierBudgets& budgets)
      : model_(model),
        request_(request),
        budgets_(budgets),
        footprints_(request.footprints != nullptr ? request.footprints
                                                  : std::make_shared<Footprints>()) {
    TERRACE_CHECK(!request.unified || !request.gpu.has_value());
  }

  StepPlan run() const {
    StepPlan plan = choose_homes();
    footprints_->forget_step();
    if (request_.is_trial) return plan;
    if (plan.program.ops.size() <= kTunedOpsMax) {
      choose_updates(plan);
      tune_order(plan);
    }
    check(plan.program);
    return plan;
  }

  // Returns the plan with a policy that was chosen elsewhere; none if that does not fit.
  std::optional<StepPlan> with(StepPolicy policy) const {
    StepPlan plan = compiled(std::move(policy));
    if (!fits(plan.ledger)) return std::nullopt;
    if (!request_.is_trial) check(plan.program);
    return plan;
  }

  std::optional<StepPlan> least(FunctionRef<bool(StepPlan&)> accepts) const {
    std::optional<StepPlan> found;
    home_choice().find_least_policy([&](StepPolicy& policy) {
      StepPlan plan = home_choice().least(std::move(policy));
      if (!fits(plan.ledger) || !accepts(plan)) return false;
      found = std::move(plan);
      return true;
    });
    if (!found.has_value() || request_.is_trial) return found;
    if (found->program.repetition.times == 1) add_edges(found->program);
    check(found->program);
    return found;
  }

  std::optional<Ledger> least_ledger() const { return home_choice().least_ledger(); }

 private:
  HomeChoice home_choice() const { return {model_, request_, budgets_, *footprints_}; }

  static void check(const Program& program) {
    const std::vector<std::string> problems = verify(program);
    if (!problems.empty()) TERRACE_CHECK_EQ(problems.front(), std::string());
  }

  StepPlan choose_homes() const {
    std::optional<StepPlan> plan = home_choice().choose();
    if (!plan.has_value()) refuse_step(model_, request_, budgets_);
    return std::move(*plan);
  }

  StepPlan compiled(StepPolicy policy) const { return home_choice().compiled(std::move(policy)); }

  // Returns the machine that plans are simulated on.
  MachineProfile machine() const {
    return request_.gpu.has_value()
               ? gpu_machine(request_.gpu->update_threads, request_.gpu->link_bytes_per_s)
               : MachineProfile();
  }

  // Moves updates from the host to the device where the links would be done with them sooner, as
  // far as the simulator says that the step becomes shorter on a machine with a GPU. The balance of
  // the lanes leaves out the time that they wait for each other, so shares on both sides of it are
  // tried too.
  void choose_updates(StepPlan& plan) const {
    if (!request_.gpu.has_value() || request_.streamed_updates.has_value()) return;
    StepPolicy all = plan.policy;
    stream_updates(model_, all, 1);
    if (all.homes == plan.policy.homes) return;
    MachineProfile profile = machine();
    const std::optional<double> flops_per_s = flops_of_balance(plan.program, profile);
    if (!flops_per_s.has_value()) return;
    profile.flops_per_s = *flops_per_s;
    const double balanced = balanced_share(model_, plan.policy, plan.program,
                                           compile_step(model_, all, budgets_), profile);
    if (balanced == 0) return;
    double best_s = simulated_step_s(plan.program, profile, kSimulatedSteps);
    const StepPolicy before = plan.policy;
    for (const double share : {balanced, balanced / 2, (balanced + 1) / 2, 1.0}) {
      std::optional<StepPlan> other = with_streamed(before, share);
      if (!other.has_value()) continue;
      const double step_s = simulated_step_s(other->program, profile, kSimulatedSteps);
      if (step_s >= kWorthwhile * best_s) continue;
      best_s = step_s;
      other->reasons = std::move(plan.reasons);
      other->reasons.made_room = moved_to_host(before, other->policy);
      plan = std::move(*other);
    }
  }

  // Returns the groups whose optimizer state is on the device in one policy and on the host in the
  // other.
  static std::vector<std::int32_t> moved_to_host(const StepPolicy& from, const StepPolicy& to) {
    std::vector<std::int32_t> moved;
    for (std::size_t g = 0; g < from.homes.size(); ++g) {
      if (from.homes[g].optimizer != to.homes[g].optimizer) {
        moved.push_back(static_cast<std::int32_t>(g));
      }
    }
    return moved;
  }

  // Returns the plan with a share of streamed updates. If it does not fit, the optimizer state of
  // further units leaves the device; none if that does not help.
  std::optional<StepPlan> with_streamed(StepPolicy policy, double share) const {
    for (int more = 0; more <= kUnitsForStreaming; ++more) {
      stream_updates(model_, policy, share);
      StepPlan plan = compiled(policy);
      if (fits(plan.ledger)) return plan;
      if (request_.homes[StateClass::kOptimizer].has_value() || !send_a_state_to_host(policy))
        break;
    }
    return std::nullopt;
  }

  // Sends the first optimizer state that is at home on the device to the host, among the groups of
  // this rank.
  bool send_a_state_to_host(StepPolicy& policy) const {
    for (std::int32_t g = 0; g < model_.group_count(); ++g) {
      Tier& home = policy.homes.at(static_cast<std::size_t>(g)).optimizer;
      if (!model_.owns(g) || home != Tier::kDevice) continue;
      home = Tier::kHost;
      return true;
    }
    return false;
  }

  // Chooses the deferred updates and the lookahead with the simulator. Updates that run at once
  // leave the drive idle under the forward, and more prefetching takes the room that lets stores
  // end late. The simulated machine takes as long for the compute as for the busiest link:
  // elsewhere there is less to hide.
  void tune_order(StepPlan& plan) const {
    MachineProfile profile = machine();
    const std::optional<double> flops_per_s = flops_of_balance(plan.program, profile);
    if (!flops_per_s.has_value()) return;
    profile.flops_per_s = *flops_per_s;
    Choice choice{profile, simulated_step_s(plan.program, profile, kSimulatedSteps), plan};
    consider({keeping_last_gradient(plan.policy)}, choice);
    const std::vector<std::int32_t> ahead = lookaheads();
    const std::vector<std::int32_t> deferred = deferred_where_none_must_be();
    using Pairs = std::vector<std::pair<std::int32_t, std::optional<std::int32_t>>>;
    const auto consider_pairs = [&](const Pairs& pairs) {
      std::vector<StepPolicy> policies;
      for (const auto& [lookahead, units] : pairs) {
        policies.push_back(plan.policy);
        policies.back().lookahead = lookahead;
        if (units.has_value()) defer_first_updates(policies.back(), model_.groups, *units);
      }
      consider(policies, choice);
    };
    Pairs pairs;
    if (plan.program.ops.size() * ahead.size() * deferred.size() <= kPairedOpsMax) {
      for (const std::int32_t a : ahead) {
        for (const std::int32_t d : deferred) pairs.emplace_back(a, d);
      }
      return consider_pairs(pairs);
    }
    for (const std::int32_t a : ahead) pairs.emplace_back(a, std::nullopt);
    consider_pairs(pairs);
    pairs.clear();
    for (const std::int32_t d : deferred) pairs.emplace_back(plan.policy.lookahead, d);
    consider_pairs(pairs);
  }

  // Returns the policy with the step's last gradient kept in memory. It is the first that the next
  // step uses.
  StepPolicy keeping_last_gradient(StepPolicy policy) const {
    std::int32_t last = model_.lowest_trained();
    for (std::int32_t u = 0; u <= model_.last_unit(); ++u) {
      if (model_.joins_micro_batches(u) && model_.trains(u)) last = u;
    }
    for (std::int32_t g = 0; g < model_.group_count(); ++g) {
      if (model_.owner(g) == last) {
        policy.homes.at(static_cast<std::size_t>(g)).keeps_gradient = true;
      }
    }
    return policy;
  }

  // The best plan so far, and the time that its step takes in the simulator.
  struct Choice {
    const MachineProfile& profile;
    double step_s = 0;
    StepPlan& plan;
  };
  // A plan that was compiled to be compared. There is none if it does not fit.
  struct Trial {
    StepPlan plan;
    double step_s = 0;
  };

  // Takes, in this order, each policy whose step is enough shorter. Two are tried at a time, by two
  // threads: programs of large models take much memory.
  void consider(const std::vector<StepPolicy>& policies, Choice& choice) const {
    const StepPolicy before = choice.plan.policy;
    const auto tried = [&](const StepPolicy& policy) -> std::optional<Trial> {
      return policy == before ? std::nullopt : try_policy(policy, choice.profile);
    };
    for (std::size_t i = 0; i < policies.size(); i += 2) {
      std::future<std::optional<Trial>> second;
      if (i + 1 < policies.size()) {
        second = std::async(std::launch::async, tried, std::cref(policies[i + 1]));
      }
      take_if_shorter(tried(policies[i]), choice);
      if (second.valid()) take_if_shorter(second.get(), choice);
    }
  }

  std::optional<Trial> try_policy(const StepPolicy& policy, const MachineProfile& profile) const {
    StepPlan plan = compiled(policy);
    if (!fits(plan.ledger)) return std::nullopt;
    const double step_s = simulated_step_s(plan.program, profile, kSimulatedSteps);
    return Trial{std::move(plan), step_s};
  }

  static void take_if_shorter(std::optional<Trial> trial, Choice& choice) {
    if (!trial.has_value() || trial->step_s >= kWorthwhile * choice.step_s) return;
    choice.step_s = trial->step_s;
    trial->plan.reasons = std::move(choice.plan.reasons);
    choice.plan = std::move(trial->plan);
  }

  std::vector<std::int32_t> lookaheads() const {
    if (request_.lookahead.has_value()) return {*request_.lookahead};
    return {kLookaheads.begin(), kLookaheads.end()};
  }

  std::vector<std::int32_t> deferred_where_none_must_be() const {
    if (request_.deferred_units.has_value()) return {*request_.deferred_units};
    std::vector<std::int32_t> numbers = {kUsualDeferredUnits};
    if (request_.updates_wait_for_norm) return numbers;
    const auto units = static_cast<std::int32_t>(model_.unit_count());
    for (std::int32_t part = 1; part <= kDeferredParts; ++part) {
      const std::int32_t deferred = units * part / kDeferredParts;
      if (deferred > kUsualDeferredUnits) numbers.push_back(deferred);
    }
    return numbers;
  }

  // Returns the FLOP/s with which the compute takes as long as the busiest link; none where either
  // has nothing to do.
  static std::optional<double> flops_of_balance(const Program& program,
                                                const MachineProfile& profile) {
    double flops = 0;
    for (std::size_t i = 0; i < program.ops.size(); ++i) {
      flops += program.times_of(i) * program.ops[i].cost.flops;
    }
    const double link_s = busiest_link_s(program, profile);
    if (link_s == 0 || flops == 0) return std::nullopt;
    return flops / link_s;
  }

  static double busiest_link_s(const Program& program, const MachineProfile& profile) {
    const double disk_bytes = lane_bytes(program, Lane::kRead) + lane_bytes(program, Lane::kWrite);
    return std::max({disk_bytes / profile.drive.disk_bytes_per_s,
                     lane_bytes(program, Lane::kUpload) / profile.upload_bytes_per_s,
                     lane_bytes(program, Lane::kDownload) / profile.download_bytes_per_s});
  }

  const StepModel& model_;
  const PlacementRequest& request_;
  const TierBudgets& budgets_;
  const std::shared_ptr<Footprints> footprints_;
};

}  // namespace

Option budget_option(Tier tier) {
  return tier == Tier::kDevice ? Option::kDeviceBudget
         : tier == Tier::kHost ? Option::kHostBudget
                               : Option::kNvmeBudget;
}

Ledger ledger_of(const Program& program, const TierBudgets& budgets) {
  Ledger ledger;
  for (const Tier tier : kTiers) {
    const TierUse& use = program.use_of(tier);
    TierLedger& entry = ledger[tier];
    entry.budget_bytes = budgets.at(static_cast<std::size_t>(tier));
    entry.peak_bytes = use.packed_bytes;
    entry.live_peak_bytes = use.live_bytes;
    entry.charged_bytes = use.accounts;
  }
  return ledger;
}

StepPlan plan_step(const StepModel& model, const PlacementRequest& request,
                   const TierBudgets& budgets, SharedPlans* shared) {
  const auto plan_of = [&](const StepModel& first) {
    const auto make = [&] { return Planner(first, request, budgets).run(); };
    return shared == nullptr ? make() : shared->get(first, budgets, make);
  };
  if (model.zero.rank == 0) return plan_of(model);
  // Data-parallel ranks with the same budgets run the same program. The place of a rank's shards
  // decides how it waits, and thereby what the simulator finds best, so all ranks take the first
  // rank's choices.
  StepModel of_first = model;
  of_first.zero.rank = 0;
  StepPlan first = plan_of(of_first);
  if (request.is_trial) return first;  // their programs are of one size
  const Planner planner(model, request, budgets);
  std::optional<StepPlan> own = planner.with(std::move(first.policy));
  if (!own.has_value()) return planner.run();
  own->reasons = std::move(first.reasons);
  return std::move(*own);
}

std::optional<StepPlan> plan_least_step(const StepModel& model, const PlacementRequest& request,
                                        const TierBudgets& budgets,
                                        FunctionRef<bool(StepPlan&)> accepts) {
  return Planner(model, request, budgets).least(accepts);
}

std::optional<Ledger> ledger_of_least_step(const StepModel& model, const PlacementRequest& request,
                                           const TierBudgets& budgets) {
  return Planner(model, request, budgets).least_ledger();
}

}  // namespace terrace
