#pragma once

#include "runtime/step/machine_profile.h"
#include "runtime/step/step_model.h"
#include "runtime/step/step_policy.h"

// Where updates run whose optimizer state is not at home on the device: on the host, or on the
// device, through which the state is then streamed (UnitHomes::streams_update). Either way the bits
// are the same.
namespace terrace {

// Chooses the units whose updates are streamed, of those that can be: evenly over the step, so that
// host and device work side by side, whole units, with about that share of their elements (0 to 1).
// Not in unified mode.
void stream_updates(const StepModel& model, StepPolicy& policy, double share);

// The share with which the busiest lane is done first, and so host and links at about the same
// time; of equal ones the least. `none` and `all` are the policy's programs with the shares 0 and
// 1. What lanes wait for is not in it: that takes a simulation.
double balanced_share(const StepModel& model, const StepPolicy& policy, const Program& none,
                      const Program& all, const MachineProfile& machine);

// A machine with a GPU, of which only the host's threads for updates are known, and what the link
// carries each way; 0: that of PCIe 4.0 x16 is taken. The rest are estimates.
MachineProfile gpu_machine(std::int32_t update_threads, double link_bytes_per_s);

}  // namespace terrace
