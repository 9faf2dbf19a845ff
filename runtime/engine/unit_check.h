#pragma once

#include <cstdint>

#include "runtime/engine/tier_plan.h"

// What a description of units from outside must hold, before anything is planned with it.
namespace terrace {

// Throws UsageError, naming the unit, for sizes and kinds that contradict each other, and for
// options that cannot be.
void check_units(const ComputeModel& units, const TierRuntimeOptions& options);

// Throws UsageError, naming the task, where the schedule cannot be a step; without one, where the
// units in their own order cannot.
void check_order(const StepModel& model, std::int32_t micro_batches);

}  // namespace terrace
