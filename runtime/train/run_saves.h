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

// Decides when a run saves its state and goes on; all ranks decide the same. All ranks make the
// same calls in the same order. The first rank looks at the drive, chooses the number of steps for
// --checkpoint-every auto, and writes it into config.toml, where a resumed run finds it.
class RunSaves {
 public:
  // Prints when the run saves, and warns of checkpoints that have no room. Borrows everything.
  // Throws as plan_saving() does.
  RunSaves(const SavingRun& run, const RankGroup& ranks, TrainConsole& console, Log& log);

  // Returns the interval of the options, or of the run that this one continues in its directory.
  const SaveInterval& interval() const { return saves_.interval(); }
  // Return whether the state is saved after the step, and whether the saves are automatic.
  bool is_due(std::int64_t step) const { return saves_.is_due(step); }
  bool is_automatic() const { return saves_.is_automatic(); }
  // Returns how many automatic checkpoints stay; 0: as many as --keep-last keeps. Valid on the
  // first rank.
  std::int64_t keep_automatic() const;
  // Chooses the number of steps once it can. Call it after each step, with the run's rows.
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
