#pragma once

#include "runtime/step/machine_profile.h"
#include "runtime/step/step_model.h"
#include "runtime/step/step_policy.h"

// The choice of where updates run whose optimizer state is not at home on the device: on the host,
// or on the device, through which the state is then streamed (GroupHomes::streams_update). Either
// way the bits are the same.
namespace terrace {

// Chooses the units whose updates are streamed, among the units that allow it. It takes whole units
// with about that share of the elements (0 to 1), evenly over the step, so that host and device
// work side by side. Not in unified mode.
void stream_updates(const StepModel& model, StepPolicy& policy, double share);

// Returns the share with which the busiest lane is done earliest, so that host and links end at
// about the same time; the least of equal ones. `none` and `all` are the policy's programs with the
// shares 0 and 1. The waits of lanes for each other are left out: they take a simulation.
double balanced_share(const StepModel& model, const StepPolicy& policy, const Program& none,
                      const Program& all, const MachineProfile& machine);

// Returns a machine with a GPU. Only the number of the host's threads for updates and the link's
// bytes per second each way are known; 0: the link is taken to be PCIe 4.0 x16. The rest are
// estimates.
MachineProfile gpu_machine(std::int32_t update_threads, double link_bytes_per_s);

}  // namespace terrace
