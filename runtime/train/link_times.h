#pragma once

#include "runtime/engine/step_ranks.h"
#include "runtime/step/machine_profile.h"

namespace terrace {

// Measures the links between ranks, and sets the profile's: a collective along each axis of the
// mesh that has several ranks, a message from each pipeline stage to the next, and the cores that
// the calling threads keep busy. All ranks call it. Over each axis 24 MiB pass at most, and
// messages pass one stage after the other. Only for communicators of host memory. Throws CommError.
void measure_links(const StepRanks& ranks, MachineProfile& profile);

}  // namespace terrace
