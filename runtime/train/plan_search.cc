#include "runtime/train/plan_search.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <map>
#include <optional>
#include <utility>

#include "base/error.h"
#include "runtime/machine/device_speeds.h"
#include "runtime/machine/rank_profile.h"
#include "runtime/train/plan_choices.h"
#include "runtime/train/plan_estimate.h"

namespace terrace {
namespace {

// Divisions whose estimate is this many times as long as the fastest step are not planned.
constexpr double kMargin = 1.25;
// The effort of a search, in ops of compiled programs: some tens of seconds of processor time. The
// outer level leaves the rest to the inner one.
constexpr double kEffortMost = 1e6;
constexpr double kOuterEffort = 0.6 * kEffortMost;
constexpr double kEffortOfRefusal = 1.5;  // several homes of states are tried before a refusal
constexpr std::size_t kRefined = 3;       // divisions whose neighbours are planned
constexpr std::size_t kFinalists = 2;
constexpr double kFinalMargin = 1.02;
constexpr std::size_t kShown = 6;
constexpr std::int32_t kZeroStageMost = 3;
constexpr double kWorthwhileStep = 0.999;
// The share of a device's memory that uploads of a step must reach to count as moved state.
constexpr double kNoticeableShare = 0.01;

class Search {
 public:
  Search(const PlanOptions& options, const Machine& machine)
      : options_(options),
        machine_(machine),
        capped_(capped_machine(options, machine)),
        choices_(options, machine) {}

  PlanSearch run() {
    std::vector<SearchedPlan> divisions = estimated_divisions();
    result_.choices = divisions.size();
    plan_divisions(divisions);
    if (tried_.empty()) refuse();
    const std::vector<SearchedPlan> starts = fastest(kRefined);
    for (const SearchedPlan& start : starts) refine(start);
    choose();
    return std::move(result_);
  }

 private:
  // Returns the divisions that the model allows, the quickest by estimate first, each with its best
  // ZeRO stage.
  std::vector<SearchedPlan> estimated_divisions() {
    std::vector<SearchedPlan> divisions;
    for (const PlanChoice& choice : choices_.divisions()) {
      const std::optional<double> estimate_s = estimate(choice);
      if (!estimate_s.has_value()) continue;
      if (!divisions.empty() && differ_in_zero(divisions.back().choice, choice)) {
        // If no stage has room by estimate, the highest is tried: it needs the least memory.
        if (*estimate_s < divisions.back().estimate_s || std::isinf(*estimate_s)) {
          if (!std::isinf(*estimate_s) || std::isinf(divisions.back().estimate_s)) {
            divisions.back() = {choice, {}, *estimate_s};
          }
        }
        continue;
      }
      divisions.push_back({choice, {}, *estimate_s});
    }
    std::ranges::stable_sort(divisions, {}, &SearchedPlan::estimate_s);
    return divisions;
  }

  static bool differ_in_zero(PlanChoice a, const PlanChoice& b) {
    a.zero_stage = b.zero_stage;
    return a == b;
  }

  // Returns the estimate of a choice; none where the model or the machine rules it out.
  std::optional<double> estimate(const PlanChoice& choice) {
    try {
      const ModelCost* const cost = cost_of(choice);
      return estimated_step_s(*cost, choice, means_of(choice));
    } catch (const ConfigError&) {
      if (rules_out_ == nullptr) rules_out_ = std::current_exception();
      return std::nullopt;
    }
  }

  // The cost of a unit depends on the micro-batch and the tensor-parallel ranks alone.
  const ModelCost* cost_of(const PlanChoice& choice) {
    const std::pair key{choice.tensor, choice.micro_batch_size};
    auto found = costs_.find(key);
    if (found == costs_.end()) {
      const PlannedRun run(with_choice(options_, choice), machine_, PlanEffort::kQuick);
      found = costs_.emplace(key, cost_of_model(run.stage_model(0))).first;
      compute_type_ = run.rank_setting().compute_type;
      budgets_[choice.ranks_per_node] = run.budgets();
    }
    return &found->second;
  }

  RankMeans means_of(const PlanChoice& choice) {
    if (!budgets_.contains(choice.ranks_per_node)) {
      const PlannedRun run(with_choice(options_, choice), machine_, PlanEffort::kQuick);
      budgets_[choice.ranks_per_node] = run.budgets();
    }
    const TierBudgets& budgets = budgets_.at(choice.ranks_per_node);
    const auto bytes_of = [&](Tier tier, double otherwise) {
      const auto& budget = budgets.at(static_cast<std::size_t>(tier));
      return budget.has_value() ? static_cast<double>(*budget) : otherwise;
    };
    const MeshShape mesh{choice.data, choice.tensor, choice.pipeline};
    RankMeans means;
    const RankSetting setting{compute_type_, mesh, choice.ranks_per_node};
    means.profile = rank_profile(capped_, setting);
    means.stage_speeds = stage_speeds(capped_, setting);
    const double host = bytes_of(Tier::kHost, INFINITY);
    const double nvme = options_.train.tiers.nvme.empty() ? 0 : bytes_of(Tier::kNvme, INFINITY);
    const bool is_unified = !budgets.front().has_value();
    means.fast_bytes = is_unified ? host : bytes_of(Tier::kDevice, 0);
    means.other_bytes = (is_unified ? 0 : host) + nvme;
    return means;
  }

  // Estimates of memory are rough: divisions that have no room by estimate are planned, too, as
  // long as nothing else fits.
  void plan_divisions(std::vector<SearchedPlan>& divisions) {
    for (SearchedPlan& division : divisions) {
      const double best_s = fastest_s();
      if (division.estimate_s > kMargin * best_s) return;
      if (effort_ > (tried_.empty() ? kEffortMost : kOuterEffort)) {
        ++result_.left;
        continue;
      }
      try_division(division);
    }
  }

  // Tries a division, and where memory is lacking its further ZeRO stages.
  void try_division(const SearchedPlan& division) {
    SearchedPlan next = division;
    for (std::int32_t stage = division.choice.zero_stage; stage <= kZeroStageMost; ++stage) {
      next.choice.zero_stage = stage;
      const bool is_open = stage == division.choice.zero_stage || choices_.allows(next.choice);
      if (is_open && (try_choice(next.choice, next.estimate_s) || !lacked_memory_)) return;
    }
  }

  double fastest_s() const {
    double best_s = INFINITY;
    for (const SearchedPlan& plan : tried_) best_s = std::min(best_s, seconds_of(plan));
    return best_s;
  }

  static double seconds_of(const SearchedPlan& plan) { return plan.outcome.forecast->step_s; }

  // Plans and simulates a choice. Returns the time of its step; none if it is refused or was tried
  // before.
  std::optional<double> try_choice(const PlanChoice& choice, double estimate_s) {
    if (std::ranges::find(seen_, choice) != seen_.end()) return std::nullopt;
    seen_.push_back(choice);
    SearchedPlan plan{choice, planned(choice, PlanEffort::kQuick), estimate_s};
    if (!plan.outcome.forecast.has_value()) return std::nullopt;
    tried_.push_back(std::move(plan));
    return seconds_of(tried_.back());
  }

  PlanOutcome planned(const PlanChoice& choice, PlanEffort effort) {
    PlanOutcome outcome = try_plan(with_choice(options_, choice), machine_, effort);
    ++result_.planned;
    const ModelCost& cost = costs_.at({choice.tensor, choice.micro_batch_size});
    const double ops = estimated_ops(cost, choice);
    effort_ += outcome.forecast.has_value() ? ops : kEffortOfRefusal * ops;
    lacked_memory_ = outcome.lacks_memory;
    if (outcome.forecast.has_value()) return outcome;
    ++result_.refused;
    if (outcome.lacks_memory) {
      refusal_ = outcome.refusal;
    } else if (outcome.lacks_figure) {
      unknown_figure_ = outcome.refusal;
    } else if (rules_out_ == nullptr) {
      rules_out_ = std::make_exception_ptr(ConfigError(outcome.refusal, ""));
    }
    return outcome;
  }

  std::vector<SearchedPlan> fastest(std::size_t most) const {
    std::vector<SearchedPlan> plans = tried_;
    std::ranges::stable_sort(plans, {}, seconds_of);
    plans.resize(std::min(most, plans.size()));
    return plans;
  }

  // Changes one setting after another, as long as steps become shorter.
  void refine(const SearchedPlan& start) {
    PlanChoice choice = start.choice;
    double step_s = seconds_of(start);
    bool is_better = true;
    while (is_better) {
      is_better = false;
      const PlanChoice before = choice;
      for (const PlanChoice& other : choices_.neighbours(before, pressure_of(before))) {
        if (effort_ > kEffortMost) return;
        const std::optional<double> estimate_s = estimate(other);
        if (!estimate_s.has_value() || std::isinf(*estimate_s)) continue;
        const std::optional<double> other_s = try_choice(other, *estimate_s);
        if (!other_s.has_value() || *other_s >= kWorthwhileStep * step_s) continue;
        choice = other;
        step_s = *other_s;
        is_better = true;
      }
    }
  }

  // Returns what the plan of a choice that was tried does for lack of device memory.
  MemoryPressure pressure_of(const PlanChoice& choice) const {
    const auto found = std::ranges::find(tried_, choice, &SearchedPlan::choice);
    MemoryPressure pressure;
    for (const StageForecast& stage : found->outcome.forecast->stages) {
      pressure.recomputes = pressure.recomputes || stage.flops.recomputed > 0;
      const double moved = stage.bytes[static_cast<std::size_t>(Lane::kUpload)];
      const auto device = static_cast<double>(stage.ledger[Tier::kDevice].peak_bytes);
      pressure.moves_state = pressure.moves_state || moved > kNoticeableShare * device;
    }
    return pressure;
  }

  // Plans the fastest choices as a training would. Behind them come the fastest of other divisions,
  // as the search has planned them.
  void choose() {
    const std::vector<SearchedPlan> plans = fastest(tried_.size());
    std::vector<SearchedPlan>& best = result_.best;
    for (SearchedPlan plan : plans) {
      const bool is_close = seconds_of(plan) <= kFinalMargin * seconds_of(plans.front());
      if (best.size() == kFinalists || (!best.empty() && !is_close)) break;
      if (is_shown(plan)) continue;
      plan.outcome = planned(plan.choice, PlanEffort::kBrief);
      if (plan.outcome.forecast.has_value()) best.push_back(std::move(plan));
    }
    if (best.empty()) refuse();
    std::ranges::stable_sort(best, {}, seconds_of);
    for (const SearchedPlan& plan : plans) {
      if (best.size() == kShown) return;
      if (!is_shown(plan)) best.push_back(plan);
    }
  }

  // Returns whether the result has a plan of the same division already.
  bool is_shown(const SearchedPlan& plan) const {
    return std::ranges::any_of(result_.best, [&](const SearchedPlan& shown) {
      return plan.choice.has_division_of(shown.choice);
    });
  }

  // Nothing was found. Memory is to blame only where some choice lacked it, and no choice might fit
  // if a figure were known.
  [[noreturn]] void refuse() const {
    if (!unknown_figure_.empty()) {
      throw ConfigError(unknown_figure_, "");  // it has the remedy
    }
    if (refusal_.empty() && rules_out_ != nullptr) std::rethrow_exception(rules_out_);
    if (result_.left > 0) {
      throw OutOfMemory(
          fmt::format("none of the {} settings that were planned fits, and the search reached its "
                      "limit: {} more divisions were not planned",
                      result_.planned, result_.left),
          "give some of --tensor-parallel, --pipeline-parallel and --zero-stage");
    }
    const std::string last = refusal_.empty() ? "" : "; the last that was tried: " + refusal_;
    throw OutOfMemory(
        fmt::format("no settings were found with which the step fits {} node{} of {}{}",
                    options_.nodes, options_.nodes == 1 ? "" : "s", machine_.name, last),
        "raise --nodes, or give --nvme DIR");
  }

  const PlanOptions& options_;
  const Machine& machine_;
  const Machine capped_;  // for estimates; plans cap the machine themselves
  const PlanChoices choices_;
  std::map<std::pair<std::int32_t, std::int64_t>, ModelCost> costs_;
  std::map<std::int32_t, TierBudgets> budgets_;  // by the ranks of a node
  DType compute_type_ = DType::kBF16;
  std::vector<PlanChoice> seen_;
  std::vector<SearchedPlan> tried_;  // those that fit
  double effort_ = 0;                // ops
  std::string refusal_;              // the last one for lack of memory
  std::string unknown_figure_;       // the last one for lack of a figure
  std::exception_ptr rules_out_;     // the first one for another reason
  bool lacked_memory_ = false;       // the last plan
  PlanSearch result_;
};

}  // namespace

PlanSearch search_plans(const PlanOptions& options, const Machine& machine) {
  return Search(options, machine).run();
}

}  // namespace terrace
