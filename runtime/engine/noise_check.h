#pragma once

#include "runtime/engine/tier_plan.h"

namespace terrace {

// Throws ConfigError if the model measures the gradient noise scale and cannot: there must be a
// small batch whose gradient is known by itself, and that is not the whole step.
void check_noise(const StepModel& model, const TierRuntimeOptions& options);

}  // namespace terrace
