#include "runtime/train/run_saves.h"

#include "runtime/config/run_of_config.h"
#include "runtime/train/resume.h"
#include "runtime/train/run_directory.h"

namespace terrace {
namespace {

// Returns the interval to start with. A run that goes on in place keeps the number that was chosen
// before.
SaveInterval interval_of(const SavingRun& run, const RankGroup& ranks) {
  SaveInterval interval = run.options.run.checkpoint_every;
  if (!interval.is_automatic || interval.steps > 0 || run.steps.done == 0) return interval;
  const bool reads = ranks.is_first() && resumes_in_place(run.options.run.resume, run.run_dir);
  interval.steps = ranks.largest(reads ? automatic_save_steps(run.run_dir) : 0);
  return interval;
}

SavingPlan plan_on_first(const SavingRun& run, const SaveInterval& interval, const RankGroup& ranks,
                         TrainConsole& console, Log& log) {
  if (!ranks.is_first()) return {};
  SavingNeed need = saving_need(run);
  need.interval = interval;
  SavingPlan plan = plan_saving(need);
  for (const std::string& doubt : plan.doubts) log.warning(doubt);
  console.say(describe_saving(need, plan, run.run_dir));
  return plan;
}

}  // namespace

RunSaves::RunSaves(const SavingRun& run, const RankGroup& ranks, TrainConsole& console, Log& log)
    : options_(run.options),
      run_dir_(run.run_dir),
      ranks_(ranks),
      console_(console),
      log_(log),
      interval_(interval_of(run, ranks)),
      plan_(plan_on_first(run, interval_, ranks, console, log)),
      saves_(interval_, ranks.any(plan_.kept_automatic > 0)) {}

// Returns 0 where --keep-last alone decides what is removed: where there is room for that many.
std::int64_t RunSaves::keep_automatic() const {
  return plan_.kept_automatic == options_.run.keep_last ? 0 : plan_.kept_automatic;
}

void RunSaves::follow(const StepRows& rows) {
  if (!saves_.is_open()) return;
  const std::int64_t steps = ranks_.is_first() ? rows.save_interval().value_or(0) : 0;
  if (!saves_.choose(ranks_.largest(steps))) return;
  console_.say(saves_.describe_choice());
  if (ranks_.is_first()) write_save_interval(run_dir_, options_, saves_.interval(), log_);
}

}  // namespace terrace
