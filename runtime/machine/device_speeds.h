#pragma once

#include <vector>

#include "runtime/machine/machine.h"
#include "runtime/machine/rank_profile.h"

// The speeds of pipeline stages on nodes whose devices are not equally fast. Ranks are numbered as
// parallel/mesh.h says. Each node has the same devices, and its first rank has its first device.
namespace terrace {

// Returns the speed of each pipeline stage. A stage is as fast as the slowest device among its
// ranks, because they wait for each other in collectives.
std::vector<double> stage_speeds(const Machine& machine, const RankSetting& setting);

// Returns the same where the stages differ, and an empty list where all are equally fast, as
// StepOptions::stage_speeds expects it.
std::vector<double> unequal_stage_speeds(const Machine& machine, const RankSetting& setting);

// Returns the machine with these rates multiplied by `speed`: products, and the device's memory.
Machine at_speed(const Machine& machine, double speed);

// Returns the peak rate of products of the devices of all ranks together, each at its own speed.
// Throws ConfigError if the rate is not known.
double peak_of_all_ranks(const Machine& machine, const RankSetting& setting);

}  // namespace terrace
