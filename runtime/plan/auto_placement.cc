#include "runtime/plan/auto_placement.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <functional>
#include <limits>
#include <optional>
#include <utility>

#include "base/bytes.h"
#include "base/check.h"
#include "base/error.h"
#include "base/function_ref.h"
#include "runtime/plan/shared_plans.h"
#include "runtime/plan/update_split.h"
#include "runtime/step/simulate.h"
#include "runtime/step/verify.h"

namespace terrace {
namespace {

// What is tried: parts of all units whose updates are deferred where none must be, and lookaheads
// where the user leaves them open; homes and order are chosen with the policy's own, and the first.
constexpr std::int32_t kFirstUnitsParts = 4;
constexpr std::int32_t kFirstLookahead = 3;
constexpr std::array<std::int32_t, 5> kLookaheads = {kFirstLookahead, 1, 2, 6, 12};
constexpr int kSimulatedSteps = 4;
// Ops of the programs that are compiled to try every lookahead with every number of deferred
// updates, at most: of larger programs first the one is chosen and then the other.
constexpr std::size_t kPairedOpsMax = 500'000;
constexpr double kWorthwhile = 0.99;
// Units that leave the device, at most, to make room for streamed updates.
constexpr int kUnitsForStreaming = 2;

// One thing that gives way: a state of one unit moves to a slower tier, or is not kept at all.
struct Concession {
  std::int32_t unit;
  std::function<void(UnitHomes&)> apply;
};

// What a refusal advises: budgets that are enough, and what else was tried and helps.
class Remedies {
 public:
  explicit Remedies(const Ledger& smallest) {
    std::string raised;
    for (const Tier tier : kTiers) {
      const TierLedger& use = smallest[tier];
      if (use.over_bytes() == 0) continue;
      lacking_ += use.over_bytes();
      // Sizes are told in three digits, which may be half a percent too low.
      const std::size_t enough = use.peak_bytes + use.peak_bytes / 128;
      raised += fmt::format("{} {} to {} or more", raised.empty() ? "raise" : " and raise",
                            flag_of_budget(tier), format_size(enough));
    }
    enough_.push_back(raised);
  }

  // A change with which the step fits.
  void enough(const std::string& change) { enough_.push_back(change); }

  // A change that saves so many bytes of what the step lacks.
  void helpful(const std::string& change, std::size_t saved) {
    if (saved < lacking_ / kNoticeablePart) return;
    helpful_.push_back(fmt::format("{} (up to {} less)", change, format_size(saved)));
  }

  std::string text() const {
    std::string text = "to make it fit: " + join(enough_, ", ", ", or ");
    if (!helpful_.empty()) text += "; not enough alone: " + join(helpful_, ", ", ", ");
    return text;
  }

 private:
  static constexpr std::size_t kNoticeablePart = 16;

  static std::string join(const std::vector<std::string>& parts, const char* between,
                          const char* before_last) {
    std::string text = parts.front();
    for (std::size_t i = 1; i < parts.size(); ++i) {
      text += (i + 1 < parts.size() ? between : before_last) + parts[i];
    }
    return text;
  }

  std::size_t lacking_ = 0;  // of all tiers
  std::vector<std::string> enough_, helpful_;
};

class Planner {
 public:
  Planner(const StepModel& model, const PlacementRequest& request, const TierBudgets& budgets)
      : model_(model), request_(request), budgets_(budgets) {
    TERRACE_CHECK(!request.unified || !request.gpu.has_value());
  }

  StepPlan run() const {
    StepPlan plan = choose_homes();
    if (request_.is_trial) return plan;
    choose_updates(plan);
    tune_order(plan);
    check(plan.program);
    return plan;
  }

  // With what was chosen elsewhere. None if that does not fit.
  std::optional<StepPlan> with(StepPolicy policy) const {
    StepPlan plan = compiled(std::move(policy));
    if (!fits(plan.ledger)) return std::nullopt;
    if (!request_.is_trial) check(plan.program);
    return plan;
  }

 private:
  static void check(const Program& program) {
    const std::vector<std::string> problems = verify(program);
    if (!problems.empty()) TERRACE_CHECK_EQ(problems.front(), std::string());
  }

  StepPlan choose_homes() const {
    if (request_.order.has_value()) return best_of(*request_.order);
    if (request_.micro_batches == 1 || model_.pipeline.stages > 1 || request_.reduces_micro_batches)
      return best_of(MicroBatchOrder::kMicroBatchMajor);
    std::optional<StepPlan> first = try_order(MicroBatchOrder::kMicroBatchMajor);
    std::optional<StepPlan> second = try_order(MicroBatchOrder::kLayerMajor);
    if (!first.has_value() && !second.has_value()) refuse(MicroBatchOrder::kLayerMajor);
    if (!second.has_value()) return std::move(*first);
    if (!first.has_value()) return std::move(*second);
    return moved_bytes(second->program) < moved_bytes(first->program) ? std::move(*second)
                                                                      : std::move(*first);
  }

  static double moved_bytes(const Program& program) {
    double bytes = 0;
    for (const Lane lane :
         {Lane::kUpload, Lane::kDownload, Lane::kRead, Lane::kWrite, Lane::kCollective}) {
      bytes += lane_bytes(program, lane);
    }
    return bytes;
  }

  StepPlan best_of(MicroBatchOrder order) const {
    std::optional<StepPlan> plan = try_order(order);
    if (!plan.has_value()) refuse(order);
    return std::move(*plan);
  }

  Tier compute_tier() const { return request_.unified ? Tier::kHost : Tier::kDevice; }

  StepPolicy fastest(MicroBatchOrder order) const {
    UnitHomes homes;
    homes.parameters = request_.parameters.value_or(compute_tier());
    homes.gradients = request_.gradients.value_or(compute_tier());
    homes.optimizer = request_.optimizer.value_or(compute_tier());
    homes.activations = request_.activations.value_or(compute_tier());
    homes.activations_named = request_.activations.has_value();
    homes.recompute = request_.recompute.value_or(false);
    StepPolicy policy;
    policy.micro_batches = request_.micro_batches;
    policy.order = order;
    policy.pipeline_schedule = request_.pipeline_schedule;
    policy.unified = request_.unified;
    policy.reduces_micro_batches = request_.reduces_micro_batches;
    policy.updates_wait_for_norm = request_.updates_wait_for_norm;
    policy.lookahead = request_.lookahead.value_or(kFirstLookahead);
    policy.homes.assign(model_.unit_count(), homes);
    return policy;
  }

  // What gives way to relieve a tier, in that order: the optimizer state goes first, as it is used
  // once a step; then recomputation; parameters and activations go last, as the compute waits for
  // them. On the host of a device recomputation is the very last: it makes room only where
  // activations wait there.
  std::vector<Concession> concessions(Tier tier) const {
    std::vector<Concession> list;
    if (tier == Tier::kDevice && request_.unified) return list;
    add(list, tier, request_.optimizer, &UnitHomes::optimizer);
    if (tier == compute_tier()) add_recompute(list);
    add(list, tier, request_.gradients, &UnitHomes::gradients);
    add(list, tier, request_.parameters, &UnitHomes::parameters);
    add(list, tier, request_.activations, &UnitHomes::activations);
    if (tier != compute_tier()) add_recompute(list);
    return list;
  }

  // Units with the longest time between uses first: the last of the forward are used again soonest.
  void add(std::vector<Concession>& list, Tier from, const std::optional<Tier>& fixed,
           Tier UnitHomes::* state) const {
    const bool device = from == Tier::kDevice;
    if (fixed.has_value() || (!device && !request_.has_nvme)) return;
    const auto move = [from, to = device ? Tier::kHost : Tier::kNvme, state](UnitHomes& homes) {
      if (homes.*state == from) homes.*state = to;
    };
    for (std::int32_t u = 0; u <= model_.head(); ++u) list.push_back({u, move});
  }

  void add_recompute(std::vector<Concession>& list) const {
    if (request_.recompute.has_value()) return;
    for (std::int32_t u = 1; u < model_.head(); ++u) {
      list.push_back({u, [](UnitHomes& homes) { homes.recompute = true; }});
    }
  }

  // The policy with so many concessions on the device and on the host.
  StepPolicy policy_with(std::size_t on_device, std::size_t on_host, MicroBatchOrder order) const {
    StepPolicy policy = fastest(order);
    const auto apply = [&policy](const std::vector<Concession>& list, std::size_t count) {
      for (std::size_t i = 0; i < count; ++i) list[i].apply(policy.homes.at(list[i].unit));
    };
    apply(concessions(Tier::kDevice), on_device);
    apply(concessions(Tier::kHost), on_host);
    if (streams_as_named()) stream_updates(model_, policy, *request_.streamed_updates);
    return policy;
  }

  StepPlan compiled(StepPolicy policy) const {
    StepPlan plan{.policy = std::move(policy), .program = {}, .ledger = {}};
    plan.program = compile_step(model_, plan.policy, budgets_);
    plan.ledger = ledger_of(plan.program, budgets_);
    return plan;
  }

  // What the policy cannot do without. Its program does not run.
  StepPlan least(StepPolicy policy) const {
    StepPlan plan{.policy = std::move(policy), .program = {}, .ledger = {}};
    plan.program = compile_least(model_, plan.policy, budgets_);
    plan.ledger = ledger_of(plan.program, budgets_);
    return plan;
  }

  // The smallest count in [0, most] that passes; `most` if none does.
  static std::size_t fewest(std::size_t most, FunctionRef<bool(std::size_t)> passes) {
    std::size_t low = 0;
    std::size_t high = most;
    while (low < high) {
      const std::size_t middle = (low + high) / 2;
      if (passes(middle)) {
        high = middle;
      } else {
        low = middle + 1;
      }
    }
    return low;
  }

  // Returns the bytes by which the smallest program is too large, all tiers together.
  std::size_t lacking_bytes(MicroBatchOrder order) const {
    const StepPlan smallest = smallest_plan(order);
    std::size_t bytes = 0;
    for (const Tier tier : kTiers) bytes += smallest.ledger[tier].over_bytes();
    return bytes;
  }

  // Returns a lower bound of it in a fraction of the time: of what must be live, not packed.
  std::size_t lacking_live_bytes(MicroBatchOrder order) const {
    std::size_t least = std::numeric_limits<std::size_t>::max();
    for (const auto& [on_device, on_host] : extremes()) {
      const auto live = least_live_bytes(model_, policy_with(on_device, on_host, order));
      std::size_t lacking = 0;
      for (std::size_t t = 0; t < kTierCount; ++t) {
        const std::size_t budget = budgets_.at(t).value_or(live.at(t));
        lacking += live.at(t) - std::min(live.at(t), budget);
      }
      least = std::min(least, lacking);
      if (least == 0) break;
    }
    return least;
  }

  // All concessions of a tier or none, on the device and on the host, the fewest first.
  std::array<std::pair<std::size_t, std::size_t>, 4> extremes() const {
    const std::size_t of_device = concessions(Tier::kDevice).size();
    const std::size_t of_host = concessions(Tier::kHost).size();
    return {{{0, 0}, {of_device, 0}, {0, of_host}, {of_device, of_host}}};
  }

  // What leaves the device goes to the host, so the device is settled first.
  std::optional<StepPlan> try_order(MicroBatchOrder order) const {
    const auto on_device = fewest_of(Tier::kDevice, [&](std::size_t count) {
      return can_fit(model_, policy_with(count, 0, order), budgets_, Tier::kDevice);
    });
    if (!on_device.has_value()) return std::nullopt;
    const auto on_host = fewest_of(Tier::kHost, [&](std::size_t count) {
      return can_fit(model_, policy_with(*on_device, count, order), budgets_, Tier::kHost);
    });
    if (!on_host.has_value()) return std::nullopt;
    StepPlan plan = compiled(policy_with(*on_device, *on_host, order));
    if (!fits(plan.ledger)) return std::nullopt;
    return plan;
  }

  // The fewest concessions of a tier that pass; none where not even all of them do.
  std::optional<std::size_t> fewest_of(Tier tier, FunctionRef<bool(std::size_t)> passes) const {
    const std::size_t most = concessions(tier).size();
    if (passes(0)) return 0;
    if (most == 0 || !passes(most)) return std::nullopt;
    return fewest(most, passes);
  }

  bool streams_as_named() const {
    return !request_.unified && request_.streamed_updates.has_value();
  }

  // What plans are simulated on.
  MachineProfile machine() const {
    return request_.gpu.has_value()
               ? gpu_machine(request_.gpu->update_threads, request_.gpu->link_bytes_per_s)
               : MachineProfile();
  }

  // Updates on the host that the links would be done with sooner run on the device, as far as that
  // makes the step shorter by what the simulator says of a machine with a GPU. What lanes wait for
  // each other is not in their balance, so shares on both sides of it are tried too.
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
    double best_s = simulate(plan.program, profile, kSimulatedSteps).step_s;
    const StepPolicy before = plan.policy;
    for (const double share : {balanced, balanced / 2, (balanced + 1) / 2, 1.0}) {
      std::optional<StepPlan> other = with_streamed(before, share);
      if (!other.has_value()) continue;
      const double step_s = simulate(other->program, profile, kSimulatedSteps).step_s;
      if (step_s >= kWorthwhile * best_s) continue;
      best_s = step_s;
      plan = std::move(*other);
    }
  }

  // None where it does not fit, though further units' optimizer state leaves the device.
  std::optional<StepPlan> with_streamed(StepPolicy policy, double share) const {
    for (int more = 0; more <= kUnitsForStreaming; ++more) {
      stream_updates(model_, policy, share);
      StepPlan plan = compiled(policy);
      if (fits(plan.ledger)) return plan;
      if (request_.optimizer.has_value() || !send_a_state_to_host(policy)) break;
    }
    return std::nullopt;
  }

  // The first that is at home on the device, of the units that are here.
  bool send_a_state_to_host(StepPolicy& policy) const {
    for (std::int32_t u = 0; u <= model_.head(); ++u) {
      Tier& home = policy.homes.at(u).optimizer;
      if (!model_.has_unit(u) || home != Tier::kDevice) continue;
      home = Tier::kHost;
      return true;
    }
    return false;
  }

  // Updates at once leave the drive idle under the forward; more prefetching takes the room that
  // lets stores end late. So the simulator is asked, of a machine on which the compute takes as
  // long as the busiest link: where that is not so, there is less to hide.
  void tune_order(StepPlan& plan) const {
    MachineProfile profile = machine();
    const std::optional<double> flops_per_s = flops_of_balance(plan.program, profile);
    if (!flops_per_s.has_value()) return;
    profile.flops_per_s = *flops_per_s;
    double best_s = simulate(plan.program, profile, kSimulatedSteps).step_s;
    const auto consider = [&](StepPolicy policy) {
      if (policy == plan.policy) return;
      StepPlan other = compiled(std::move(policy));
      if (!fits(other.ledger)) return;
      const double step_s = simulate(other.program, profile, kSimulatedSteps).step_s;
      if (step_s >= kWorthwhile * best_s) return;
      best_s = step_s;
      plan = std::move(other);
    };
    StepPolicy keeping = plan.policy;
    keeping.keeps_first_gradient = true;
    consider(std::move(keeping));
    const auto consider_pair = [&](std::int32_t lookahead, std::int32_t first_units) {
      StepPolicy policy = plan.policy;
      policy.lookahead = lookahead;
      policy.first_units = first_units;
      consider(std::move(policy));
    };
    const std::vector<std::int32_t> ahead = lookaheads();
    const std::vector<std::int32_t> deferred = deferred_where_none_must_be();
    if (plan.program.ops.size() * ahead.size() * deferred.size() <= kPairedOpsMax) {
      for (const std::int32_t a : ahead) {
        for (const std::int32_t d : deferred) consider_pair(a, d);
      }
      return;
    }
    for (const std::int32_t a : ahead) consider_pair(a, plan.policy.first_units);
    for (const std::int32_t d : deferred) consider_pair(plan.policy.lookahead, d);
  }

  std::vector<std::int32_t> lookaheads() const {
    if (request_.lookahead.has_value()) return {*request_.lookahead};
    return {kLookaheads.begin(), kLookaheads.end()};
  }

  std::vector<std::int32_t> deferred_where_none_must_be() const {
    const std::int32_t usual = StepPolicy().first_units;
    std::vector<std::int32_t> numbers = {usual};
    if (request_.updates_wait_for_norm) return numbers;
    const auto units = static_cast<std::int32_t>(model_.unit_count());
    for (std::int32_t part = 1; part <= kFirstUnitsParts; ++part) {
      const std::int32_t first_units = units * part / kFirstUnitsParts;
      if (first_units > usual) numbers.push_back(first_units);
    }
    return numbers;
  }

  // With which the compute takes as long as the busiest link; none where either has nothing to do.
  static std::optional<double> flops_of_balance(const Program& program,
                                                const MachineProfile& profile) {
    double flops = 0;
    for (const Op& op : program.ops) flops += op.cost.flops;
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

  // The plan that is short of the fewest bytes of the device, and then of the host, among those
  // with all concessions of a tier or none. Of equals the first, which asks for the least of a
  // drive.
  StepPlan smallest_plan(MicroBatchOrder order) const {
    const auto short_of = [](const StepPlan& plan) {
      return std::pair{plan.ledger[Tier::kDevice].over_bytes(),
                       plan.ledger[Tier::kHost].over_bytes()};
    };
    std::optional<StepPlan> smallest;
    for (const auto& [on_device, on_host] : extremes()) {
      StepPlan plan = least(policy_with(on_device, on_host, order));
      const bool is_smaller = !smallest.has_value() || short_of(plan) < short_of(*smallest);
      if (is_smaller) smallest = std::move(plan);
    }
    return std::move(*smallest);
  }

  [[noreturn]] void refuse(MicroBatchOrder order) const {
    if (request_.is_trial) throw OutOfMemory("the step does not fit", "");
    const StepPlan smallest = smallest_plan(order);
    Remedies remedies(smallest.ledger);
    const std::size_t lacking = lacking_live_bytes(order);
    try_tiers(order, lacking, remedies);
    for (const Reduction& reduction : request_.reductions) {
      try_reduction(reduction, order, lacking, remedies);
    }
    throw OutOfMemory(fmt::format("the step does not fit: {}\n{}",
                                  describe_shortfall(smallest.ledger), to_text(smallest.ledger)),
                      remedies.text());
  }

  // Tries the drive and recomputation, where the user has neither. `lacking`: live bytes, of now.
  void try_tiers(MicroBatchOrder order, std::size_t lacking, Remedies& remedies) const {
    const auto try_with = [&](const char* change, const PlacementRequest& other) {
      const Planner planner(model_, other, budgets_);
      if (planner.has_a_fitting_program(order)) return remedies.enough(change);
      remedies.helpful(change, lacking - std::min(lacking, planner.lacking_live_bytes(order)));
    };
    PlacementRequest other = request_;
    other.has_nvme = true;
    if (!request_.has_nvme) try_with("give --nvme DIR", other);
    other = request_;
    other.recompute = true;
    if (request_.recompute == std::optional(false)) try_with("allow --recompute full", other);
  }

  // Whether some program fits. Asks for live bytes first, as these are known soon.
  bool has_a_fitting_program(MicroBatchOrder order) const {
    return lacking_live_bytes(order) == 0 && lacking_bytes(order) == 0;
  }

  // Finds the largest lower value with which the step fits; none: says what the lowest one saves.
  // The search goes by live bytes, and what it finds is compiled.
  void try_reduction(const Reduction& reduction, MicroBatchOrder order, std::size_t lacking,
                     Remedies& remedies) const {
    const std::int64_t most = (reduction.value - 1) / reduction.multiple_of;
    const std::int64_t least = std::max<std::int64_t>(1, reduction.least / reduction.multiple_of);
    if (most < least) return;
    const auto value_at = [&](std::size_t lowered) {
      return (most - static_cast<std::int64_t>(lowered)) * reduction.multiple_of;
    };
    const auto live_at = [&](std::size_t lowered) {
      return Planner(model_at(reduction, value_at(lowered)), request_, budgets_)
          .lacking_live_bytes(order);
    };
    const auto lowest = static_cast<std::size_t>(most - least);
    const std::size_t lacking_at_lowest = live_at(lowest);
    if (lacking_at_lowest == 0) {
      const std::size_t first = fewest(lowest, [&](std::size_t n) { return live_at(n) == 0; });
      for (std::size_t n = first; n <= std::min(lowest, first + kConfirmationsMax); ++n) {
        const StepModel model = model_at(reduction, value_at(n));
        if (Planner(model, request_, budgets_).lacking_bytes(order) > 0) continue;
        return remedies.enough(fmt::format("lower {} to {}", reduction.flag, value_at(n)));
      }
    }
    remedies.helpful("lower " + reduction.flag, lacking - std::min(lacking, lacking_at_lowest));
  }

  StepModel model_at(const Reduction& reduction, std::int64_t value) const {
    StepModel model = reduction.model_with(value);
    model.zero.rank = model_.zero.rank;  // of the rank that is planned for
    return model;
  }

  static constexpr std::size_t kConfirmationsMax = 3;  // where packing is above what is live

  const StepModel& model_;
  const PlacementRequest& request_;
  const TierBudgets& budgets_;
};

}  // namespace

const char* flag_of_budget(Tier tier) {
  return tier == Tier::kDevice ? "--device-memory"
         : tier == Tier::kHost ? "--host-memory"
                               : "the SIZE of --nvme";
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
  // Data-parallel ranks must run one program, and where a rank's shards lie decides on its waits,
  // and so on what the simulator says of it: all take what is best for the first.
  StepModel of_first = model;
  of_first.zero.rank = 0;
  StepPlan first = plan_of(of_first);
  const Planner planner(model, request, budgets);
  std::optional<StepPlan> own = planner.with(std::move(first.policy));
  return own.has_value() ? std::move(*own) : planner.run();
}

}  // namespace terrace
