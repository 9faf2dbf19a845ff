#pragma once

#include <vector>

#include "runtime/plan/auto_placement.h"

namespace terrace {

// Returns the states that can give way for the budget of a tier, in the order in which they do.
// Optimizer state goes first, because it is used once a step; then comes recomputation. Parameters
// and activations go last, because the compute waits for them. On the host of a device
// recomputation is the very last: it makes room only where activations wait there.
// `recomputes_first`: all units recompute before anything gives way, so recomputation is left out.
std::vector<Concession> concessions(const StepModel& model, const PlacementRequest& request,
                                    Tier tier, bool recomputes_first);

// Makes a concession in a policy.
void apply(const Concession& concession, StepPolicy& policy);

}  // namespace terrace
