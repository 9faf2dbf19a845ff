#pragma once

#include <cstdint>
#include <string>

#include "base/log.h"
#include "runtime/train/checkpoint_room.h"
#include "runtime/train/periodic_saves.h"
#include "runtime/train/rank_group.h"
#include "runtime/train/step_rows.h"
#include "runtime/train/train_console.h"

namespace terrace {

// When a run saves its state and goes on, as all its ranks know it. All do the same calls in the
// same order. The first rank looks at the drive, chooses the number of steps of --checkpoint-every
// auto, and writes it into config.toml, where a resumed run finds it.
class RunSaves {
 public:
  // Says when the run saves, and warns of what has no room. Borrows all. Throws as plan_saving().
  RunSaves(const SavingRun& run, const RankGroup& ranks, TrainConsole& console, Log& log);

  // As the options have it, or the run that this one goes on with in its directory.
  const SaveInterval& interval() const { return saves_.interval(); }
  // Whether the state is saved after the step, and whether that is automatic.
  bool is_due(std::int64_t step) const { return saves_.is_due(step); }
  bool is_automatic() const { return saves_.is_automatic(); }
  // How many automatic checkpoints stay; 0: those that --keep-last keeps. Of the first rank.
  std::int64_t keep_automatic() const;
  // To be called after each step, with its rows.
  void follow(const StepRows& rows);

 private:
  const TrainOptions& options_;
  const std::string run_dir_;
  const RankGroup& ranks_;
  TrainConsole& console_;
  Log& log_;
  const SaveInterval interval_;  // at the start
  SavingPlan plan_;              // of the first rank
  PeriodicSaves saves_;
};

}  // namespace terrace
