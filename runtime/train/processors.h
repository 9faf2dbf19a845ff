#pragma once

#include <string>

#include "runtime/train/rank_group.h"
#include "runtime/train/train_setup.h"

// Facts about the processors that a rank computes on.
namespace terrace {

// Returns what the bits of a step depend on besides the options: the program's version, and either
// the libraries and the instruction set or the GPU. The text is for people and for comparison.
std::string arithmetic_of(const MachineShare& machine);

// Returns how long a step of all ranks would take if their GPUs did nothing but the step's
// products, at the speed that the maker states; 0 where that speed is not known. All ranks call it.
double seconds_at_stated_speed(const ModelRuntimeOptions& options, const TierPlan& plan,
                               const MachineShare& machine, const RankGroup& ranks);

}  // namespace terrace
