#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "memory/ledger.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/checkpoint/weight_types.h"
#include "runtime/config/train_options.h"

// The room that a run needs for what it saves, on the drive of its directory and in memory. It is
// checked before the first step.
namespace terrace {

struct RunSteps {
  std::int64_t done = 0;   // before the run
  std::int64_t last = 0;   // where it ends
  std::int64_t total = 0;  // of the schedule
};

// The checkpoints and the result that a run will save.
struct SavingNeed {
  SaveInterval interval;
  std::int64_t keep_last = 0;
  RunSteps steps;
  std::uint64_t checkpoint_bytes = 0;
  std::uint64_t result_bytes = 0;  // of final/
  std::int64_t removable = 0;      // checkpoints that are there and that the run may remove
  std::optional<std::uint64_t> free_bytes = {};  // none: the file system does not say
};

// The part of that need that has room.
struct SavingPlan {
  // The number of automatic checkpoints that are kept; 0: they have no room, or none are asked for.
  std::int64_t kept_automatic = 0;
  std::vector<std::string> doubts;  // sentences
};

// Returns how many automatic checkpoints are kept beside the one that is being written: two, or the
// number of --keep-last, or fewer where there is less room. Throws OutOfMemory where the user asked
// for a checkpoint after a number of steps and there is no room for one.
SavingPlan plan_saving(const SavingNeed& need);

// Says when a run saves, how much, and where, as one sentence for the console.
std::string describe_saving(const SavingNeed& need, const SavingPlan& plan,
                            const std::string& run_dir);

// A run that saves; borrows what it refers to.
struct SavingRun {
  const TrainOptions& options;
  std::string run_dir;  // need not be there; empty: not known yet
  CheckpointedModel model;
  WeightTypes result_types;
  RunSteps steps = {};
  std::uint64_t nvme_bytes = 0;   // that the drives of --nvme will have, of all ranks of the host
  std::uint64_t error_bytes = 0;  // of errors of coded gradients, in each checkpoint
};
SavingNeed saving_need(const SavingRun& run);

// Returns the bytes of memory that the state may take on its way into a checkpoint: the part of the
// host budget that the ledger leaves, and at most half of the memory that is free now.
std::size_t staging_room(const Ledger& ledger, std::size_t usable_bytes);

}  // namespace terrace
