#pragma once

#include "runtime/engine/tier_plan.h"

namespace terrace {

// Throws ConfigError where the step cannot pass numbers between data-parallel ranks in the forms of
// TierRuntimeOptions::wire.
void check_wire(const StepModel& model, const TierRuntimeOptions& options);

}  // namespace terrace
