#pragma once

#include <cstdint>

#include "runtime/engine/tier_plan.h"

// The checks that a description of units from outside must pass before anything is planned with it.
namespace terrace {

// Throws UsageError, which names the unit, for sizes and kinds that contradict each other, and for
// options that are impossible.
void check_units(const ComputeModel& units, const TierRuntimeOptions& options);

// Throws UsageError, which names the task, where the schedule cannot be a step. Without a schedule,
// throws it where the units in their own order cannot be a step.
void check_order(const StepModel& model, std::int32_t micro_batches);

}  // namespace terrace
