#pragma once

#include <string>

#include "runtime/train/rank_group.h"
#include "runtime/train/train_setup.h"

// What the processors that a rank computes on say of themselves.
namespace terrace {

// Returns what the bits of a step depend on beside the options: the program's version, and
// libraries and instruction set, or the GPU. For people, and to be compared.
std::string arithmetic_of(const MachineShare& machine);

// Returns how long a step of all ranks would take if their GPUs did nothing but its products, at
// the speed that their maker states; 0 where that is not known. All ranks call it.
double seconds_at_stated_speed(const ModelRuntimeOptions& options, const TierPlan& plan,
                               const MachineShare& machine, const RankGroup& ranks);

}  // namespace terrace
