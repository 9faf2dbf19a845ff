#include "runtime/train/dry_run.h"

#include <fmt/format.h>

#include <exception>

#include "base/bytes.h"
#include "base/check.h"
#include "base/error.h"
#include "runtime/plan/shared_plans.h"
#include "runtime/train/budget_search.h"
#include "runtime/train/dry_run_document.h"
#include "runtime/train/gradient_errors.h"
#include "runtime/train/plan_explanation.h"
#include "runtime/train/rank_limits.h"
#include "runtime/train/rank_plans.h"
#include "runtime/train/start_obstacles.h"
#include "runtime/train/train_report.h"

namespace terrace {
namespace {

constexpr int kExitDoesNotFit = 3;

class DryRun {
 public:
  DryRun(const DryRunSetting& setting, TrainConsole& console)
      : setting_(setting),
        ranks_(setting.ranks),
        console_(console),
        engine_(setting.engine),
        saving_(setting.saving),
        search_(setting.engine, ranks_),
        is_json_(setting.options.run.json) {}

  void run() {
    {
      // Nothing but the document goes to standard output.
      SilentConsole silent;
      TrainConsole& seen = is_json_ ? static_cast<TrainConsole&>(silent) : console_;
      const ConsolePhase phase(seen, "planning the step");
      plan();
      if (!fits_ && !is_json_) return rethrow_refusal();
      saving_.checkpoint_bytes += errors_in_checkpoint(plan_.model);
      check_plans_of_ranks(engine_, plan_, ranks_);
      if (is_json_) find_least();
    }
    find_obstacles();
    prediction_ = predict_step({engine_, plan_, setting_.machine, ranks_}, kPredictionSecondsMost);
    if (is_json_) {
      print_document();
    } else {
      print_text();
    }
    if (!fits_ && ranks_.is_first()) refuse_beside_document();
  }

 private:
  // Plans with the budgets asked for. Where a budget that is this machine's default is too small,
  // plans with the least that suffices instead. Where a budget that was asked for is too small,
  // raises all budgets like this, but only for the document.
  void plan() {
    asked_ = engine_.budgets;
    if (try_budgets(asked_, Refusal::kBrief)) return;
    const TierOptions& tiers = setting_.options.tiers;
    const bool has_own_device = setting_.machine.gpu.has_value() && !tiers.device_memory;
    const std::array<bool, kTierCount> defaults = {has_own_device, !tiers.host_memory, false};
    std::optional<TierBudgets> raised;
    if (defaults[0] || defaults[1]) raised = search_.raise(asked_, defaults);
    if (raised.has_value()) {
      tell_defaults(*raised, defaults);
    } else {
      fits_ = false;
      TERRACE_CHECK(!try_budgets(asked_, Refusal::kExplained));
      if (!is_json_) return;
      raised = search_.raise(asked_, {true, true, true});
    }
    TERRACE_CHECK(raised.has_value());
    raised_ = *raised;
    TERRACE_CHECK(try_budgets(raised_, Refusal::kExplained));
  }

  enum class Refusal : std::uint8_t { kBrief, kExplained };

  // Plans with `budgets`. Where the plan of some rank does not fit, keeps this rank's refusal and
  // returns false.
  bool try_budgets(const TierBudgets& budgets, Refusal refusal_form) {
    engine_.budgets = budgets;
    if (budgets != asked_) engine_.stage_limits.clear();  // other budgets, for all stages
    engine_.placement.explains_refusal = refusal_form == Refusal::kExplained;
    std::exception_ptr refusal;
    try {
      plan_ = plan_for_ranks(engine_, ranks_);
    } catch (const OutOfMemory&) {
      refusal = std::current_exception();
    }
    if (!ranks_.any(refusal != nullptr)) return true;
    refusal_ = refusal;
    // The shared plans would give the same refusal again.
    if (engine_.shared_plans != nullptr) engine_.shared_plans->clear();
    return false;
  }

  // Rethrows this rank's refusal. A rank whose own plan fits throws nothing: another rank does.
  void rethrow_refusal() const {
    if (refusal_ != nullptr) std::rethrow_exception(refusal_);
  }

  // Called only on the rank that prints the document, after it is printed: a rank that fails ends
  // the calls of the others, and the first rank may still be in one.
  [[noreturn]] void refuse_beside_document() const {
    if (refusal_ != nullptr) std::rethrow_exception(refusal_);
    throw OutOfMemory("the step does not fit on a rank other than the first",
                      "raise the budgets to the least bytes that the document gives");
  }

  void tell_defaults(const TierBudgets& raised, const std::array<bool, kTierCount>& defaults) {
    for (const Tier tier : kTiers) {
      const auto t = static_cast<std::size_t>(tier);
      if (!defaults.at(t) || raised.at(t) == asked_.at(t)) continue;
      obstacles_.push_back(
          {kExitDoesNotFit,
           fmt::format("{} needs at least {}, but only {} may be used here", name_of(tier),
                       format_size(*raised.at(t)), format_size(*asked_.at(t)))});
      asked_.at(t).reset();
    }
  }

  // Finds the least budget of each tier, given the other budgets. Where the budgets asked for do
  // not suffice, the budgets found have to suffice together, so each tier is lowered given the
  // tiers before it.
  void find_least() {
    TierBudgets budgets = engine_.budgets;
    for (const Tier tier : kTiers) {
      const auto t = static_cast<std::size_t>(tier);
      const bool is_raised = !fits_ && raised_.at(t) != asked_.at(t);
      document_.least_bytes.at(t) = is_raised ? *raised_.at(t) : search_.least(budgets, tier);
      if (!fits_) budgets.at(t) = document_.least_bytes.at(t);
    }
  }

  void find_obstacles() {
    RoomNeed need = room_need(engine_, plan_, setting_.machine, ranks_);
    need.budgets = budgets_on_host(setting_.options.tiers, setting_.machine, ranks_);
    for (StartObstacle& obstacle :
         start_obstacles(setting_.options, need, saving_, setting_.machine, setting_.total_steps)) {
      obstacles_.push_back(std::move(obstacle));
    }
  }

  void print_document() {
    document_.fits = fits_;
    document_.budgets = asked_;
    document_.ledger = gather_ledger(plan_.ledger, ranks_);
    document_.obstacles = obstacles_;
    document_.prediction = prediction_;
    document_.documents = setting_.documents;
    document_.tokens_per_step = setting_.tokens_per_step;
    document_.reasons = reasons_json(plan_);
    gather_step(plan_.training.program, ranks_, document_);
    if (ranks_.is_first()) console_.say(to_json(document_));
  }

  void print_text() {
    tell_plan(engine_, plan_, ranks_, console_);
    const std::string& unit = setting_.options.run.explain;
    if (!unit.empty()) console_.say(explain_unit(plan_, unit));
    if (prediction_.has_value()) {
      console_.say(
          describe_prediction(*prediction_, plan_.training.program, setting_.tokens_per_step));
    }
    console_.say(setting_.data);
    print_saving();
    for (const StartObstacle& obstacle : obstacles_) {
      console_.say(fmt::format("{}: a run on this machine would exit with code {}", obstacle.reason,
                               obstacle.exit_code));
    }
  }

  // Prints when the run would save. Where that cannot be planned, it is among the obstacles.
  void print_saving() {
    const TrainOptions& options = setting_.options;
    try {
      const SavingPlan saving = plan_saving(saving_);
      console_.say(describe_saving(saving_, saving, options.run.run_dir));
      for (const std::string& doubt : saving.doubts) console_.say(doubt);
    } catch (const OutOfMemory&) {
      return;
    }
  }

  const DryRunSetting& setting_;
  const RankGroup& ranks_;
  TrainConsole& console_;
  ModelRuntimeOptions engine_;  // with the budgets that were planned with last
  SavingNeed saving_;           // with the errors that the plan has
  BudgetSearch search_;
  const bool is_json_;
  bool fits_ = true;
  TierBudgets asked_;
  TierBudgets raised_;
  std::exception_ptr refusal_;  // null: only plans of other ranks do not fit
  TierPlan plan_;
  std::optional<StepPrediction> prediction_;
  std::vector<StartObstacle> obstacles_;
  DryRunDocument document_;
};

}  // namespace

void dry_run(const DryRunSetting& setting, TrainConsole& console) {
  DryRun(setting, console).run();
}

}  // namespace terrace
