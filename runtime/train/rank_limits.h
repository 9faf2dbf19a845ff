#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/engine/model_runtime.h"
#include "runtime/train/rank_group.h"
#include "runtime/train/train_console.h"
#include "runtime/train/train_setup.h"

// The memory and the threads that the ranks of a run plan for, and where each rank keeps its state.
// docs/parallel.md explains it.
namespace terrace {

// Returns whether each rank plans its step for its own budgets and threads. Otherwise the ranks of
// a pipeline stage take the least that any of them has, because they must compile one program.
bool has_own_limits(const ModelRuntimeOptions& engine);

// Gives the engine the ranks, and settles the budgets and threads that this rank plans for. Tells
// the console if ranks differ much but must plan for the least. Throws OutOfMemory where the
// budgets of this host's ranks exceed its memory, except in a dry run. All ranks call it.
void agree_on_limits(const TrainOptions& options, const MachineShare& machine,
                     const RankGroup& ranks, ModelRuntimeOptions& engine, TrainConsole& console);

// The budgets and threads that a rank plans for.
struct RankLimits {
  std::array<std::uint64_t, kTierCount> budgets{};  // kNoBudget: none
  std::int32_t threads = 1;
  std::int32_t update_threads = 1;

  static constexpr std::uint64_t kNoBudget = ~std::uint64_t{0};
  friend bool operator==(const RankLimits&, const RankLimits&) = default;
};

// Returns the limits of all ranks, by rank. All ranks call it.
std::vector<RankLimits> limits_of_ranks(const ModelRuntimeOptions& engine, const RankGroup& ranks);
// Returns whether threads differ, or the budgets of a tier by more than a twentieth. The free
// memory of equal hosts differs by less.
bool are_unequal(const std::vector<RankLimits>& ranks);

// The bytes that a rank has in each tier, and those that move to and from its drive.
struct RankMemory {
  RankLimits limits;
  std::array<std::uint64_t, kTierCount> peaks{};  // bytes
  std::uint64_t read_bytes = 0;                   // from drives in a step
  std::uint64_t written_bytes = 0;                // to drives in a step
};

// Returns the memory of all ranks, by rank, if they plan for unequal limits; else an empty list.
// All ranks call it.
std::vector<RankMemory> unequal_memory(const ModelRuntimeOptions& engine, const TierPlan& plan,
                                       const RankGroup& ranks);
// Returns a table for the console; empty for an empty list.
std::string describe_memory(const std::vector<RankMemory>& ranks);
// Returns the same as an array for run.json; empty for an empty list.
std::string memory_json(const std::vector<RankMemory>& ranks);

// Prints a rank's plan and this table. Returns unequal_memory(). All ranks call it.
std::vector<RankMemory> tell_plan(const ModelRuntimeOptions& engine, const TierPlan& plan,
                                  const RankGroup& ranks, TrainConsole& console);

}  // namespace terrace
