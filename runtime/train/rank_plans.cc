#include "runtime/train/rank_plans.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "runtime/plan/shared_plans.h"
#include "runtime/step/verify_ranks.h"
#include "runtime/train/rank_limits.h"

namespace terrace {
namespace {

// The choices of a plan that the order of its collectives depends on.
struct SharedChoices {
  std::int64_t chunk_elements = 0;
  std::int32_t deferred_units = 0;
  MicroBatchOrder order = MicroBatchOrder::kMicroBatchMajor;
};

SharedChoices choices_of(const TierPlan& plan) {
  const StepPolicy& policy = plan.training.policy;
  return {plan.model.chunk_elements, deferred_units_of(policy, plan.model.groups), policy.order};
}

ModelRuntimeOptions with_choices(ModelRuntimeOptions options, const SharedChoices& choices) {
  options.chunk_elements = choices.chunk_elements;
  options.has_fixed_chunks = true;
  options.placement.deferred_units = choices.deferred_units;
  options.placement.order = choices.order;
  return options;
}

// Returns the rank with the least memory; of several, the first.
int tightest_of(const std::vector<RankLimits>& ranks) {
  const auto memory = [](const RankLimits& rank) {
    const auto of = [&](Tier tier) {
      const std::uint64_t budget = rank.budgets.at(static_cast<std::size_t>(tier));
      return budget == RankLimits::kNoBudget ? 0.0 : static_cast<double>(budget);
    };
    return of(Tier::kDevice) + of(Tier::kHost);
  };
  return static_cast<int>(std::ranges::min_element(ranks, {}, memory) - ranks.begin());
}

// Plans on the rank with the least memory, and returns its choices on all ranks. `plan` is set on
// that rank.
SharedChoices choices_of_tightest(const ModelRuntimeOptions& options, const RankGroup& ranks,
                                  int tightest, std::optional<TierPlan>& plan) {
  SharedChoices choices;
  std::exception_ptr refusal;
  if (ranks.rank() == tightest) {
    try {
      plan = plan_model(options);
      choices = choices_of(*plan);
    } catch (const OutOfMemory&) {
      refusal = std::current_exception();
    }
  }
  if (refusal != nullptr) {
    ranks.any(true);
    std::rethrow_exception(refusal);
  }
  if (ranks.any(false)) {
    throw OutOfMemory(fmt::format("the step does not fit on rank {}", tightest),
                      "the message of that rank says what would help");
  }
  return of_all_ranks(*ranks.world(), choices).at(static_cast<std::size_t>(tightest));
}

// Throws ConfigError. Without a pipeline it names the first collective in which this rank's program
// differs from the first rank's; stages differ in any case. All ranks call it.
[[noreturn]] void refuse_programs(const Program& program, RankMatch match, const RankGroup& ranks) {
  std::string difference;
  if (match == RankMatch::kCollectives) {
    const std::string own = shared_ops(program, match);
    difference = first_difference(ranks.text_of_first(own), own, ranks.rank());
  }
  throw ConfigError(fmt::format("the ranks compiled different steps{}{}",
                                difference.empty() ? "" : ": ", difference),
                    "start all ranks with the same flags and the same version of Terrace");
}

}  // namespace

TierPlan plan_for_ranks(const ModelRuntimeOptions& options, const RankGroup& ranks) {
  if (!has_own_limits(options)) return plan_model(options);
  const std::vector<RankLimits> limits = limits_of_ranks(options, ranks);
  const bool are_alike = std::ranges::count(limits, limits.front()) == std::ssize(limits);
  if (are_alike) return plan_model(options);
  std::optional<TierPlan> plan;
  const SharedChoices choices = choices_of_tightest(options, ranks, tightest_of(limits), plan);
  if (plan.has_value()) return *std::move(plan);
  return plan_model(with_choices(options, choices));
}

void check_plans_of_ranks(const ModelRuntimeOptions& options, const TierPlan& plan,
                          const RankGroup& ranks) {
  if (ranks.is_first()) check_stages(options, plan);
  const bool has_stages = options.ranks.shape.pipeline > 1;
  const RankMatch match = has_stages ? RankMatch::kAllOps : RankMatch::kCollectives;
  const auto is_same = [&](const Program& program) {
    const std::uint64_t fingerprint = rank_fingerprint(program, match);
    return has_stages ? ranks.is_same_in_stages(fingerprint) : ranks.is_same(fingerprint);
  };
  const bool same_training = is_same(plan.training.program);
  const bool same_evaluation = is_same(plan.evaluation);
  // Every rank has planned by now, as the exchanges above show.
  if (options.shared_plans != nullptr) options.shared_plans->clear();
  if (!same_training) refuse_programs(plan.training.program, match, ranks);
  if (!same_evaluation) refuse_programs(plan.evaluation, match, ranks);
}

TierPlan checked_plan(const ModelRuntimeOptions& options, const RankGroup& ranks,
                      TrainConsole& console) {
  const ConsolePhase phase(console, "planning the step");
  TierPlan plan = plan_for_ranks(options, ranks);
  check_plans_of_ranks(options, plan, ranks);
  return plan;
}

}  // namespace terrace
