#pragma once

#include <span>
#include <vector>

#include "runtime/step/machine_profile.h"
#include "runtime/step/program.h"

namespace terrace {

struct StagesSimulation {
  double makespan_s = 0;               // of one step, without the updates of the step before
  std::vector<double> compute_busy_s;  // by stage
  // The share of the makespan of all stages' compute lanes in which nothing computes.
  double bubble_share = 0;
};

// Runs the first step of all stages of one pipeline on virtual lanes. Each stage is on a machine of
// its own with this profile, and lanes do not slow each other. Reads and writes complete in order.
// A message takes as long as its slower end, and both ends begin and end together. The programs, by
// stage, must be ones that verify_stages() accepts. Throws ConfigError for an impossible profile.
StagesSimulation simulate_stages(std::span<const Program> programs, const MachineProfile& profile);

}  // namespace terrace
