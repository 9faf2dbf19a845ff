#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/error.h"
#include "runtime/train/checkpoint_room.h"
#include "runtime/train/rank_group.h"
#include "runtime/train/train_setup.h"

// Reasons why a run of a compiled step cannot start on this machine.
namespace terrace {

// The room that all ranks of this host together need before the first step.
struct RoomNeed {
  std::uint64_t memory_bytes = 0;  // arenas, tokens and programs in host memory
  std::uint64_t nvme_bytes = 0;    // of all directories together
  std::size_t budgets = 0;         // budgets_on_host(); used by start_obstacles() alone
};

// Adds up the ranks' plans. All ranks call it, and each gets the need of its host.
RoomNeed room_need(const ModelRuntimeOptions& options, const TierPlan& plan,
                   const MachineShare& machine, const RankGroup& ranks);

// Throws OutOfMemory where this machine lacks the room: free memory, or free space below the
// directories of --nvme.
void check_room(const RoomNeed& need, const TierOptions& tiers, const MachineShare& machine);

// Returns the text of an error without its remedy.
std::string reason_of(const Error& error);

struct StartObstacle {
  int exit_code = 0;  // of a run that meets it here
  std::string reason;
};

// Returns the obstacles that a run with these options would meet here before its first step, in
// that order. Changes nothing. `total_steps`: of the run.
std::vector<StartObstacle> start_obstacles(const TrainOptions& options, const RoomNeed& need,
                                           const SavingNeed& saving, const MachineShare& machine,
                                           std::int64_t total_steps);

}  // namespace terrace
