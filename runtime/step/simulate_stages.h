#pragma once

#include <span>
#include <vector>

#include "runtime/step/machine_profile.h"
#include "runtime/step/program.h"

namespace terrace {

struct StagesSimulation {
  double step_s = 0;                   // from the end of the first step to the end of the second
  std::vector<double> compute_busy_s;  // of the second step, by stage
  // The share of the step in which the compute lanes of all stages, taken together, compute
  // nothing.
  double bubble_share = 0;
};

// Runs the first two steps of all stages of one pipeline on virtual lanes. The second step begins
// with the updates that belong to the first. Each stage is on a machine of its own, which has the
// profile with the stage's number, and lanes do not slow each other. Reads and writes complete in
// order. A message takes as long as its slower end, and both ends begin and end together. The
// programs, by stage, must be ones that verify_stages() accepts. Throws ConfigError for an
// impossible profile.
StagesSimulation simulate_stages(std::span<const Program* const> programs,
                                 std::span<const MachineProfile> profiles);
// Does the same where the machines of all stages have the same profile.
StagesSimulation simulate_stages(std::span<const Program* const> programs,
                                 const MachineProfile& profile);

}  // namespace terrace
