#pragma once

#include <cstdint>
#include <vector>

#include "runtime/step/step_model.h"
#include "runtime/step/step_policy.h"

// The order of a step's compute where it comes from outside (StepModel::tasks): from a trainer that
// has its own, and compiled like Terrace's. A unit may be used several times in the forward of a
// micro-batch; runtime/step/forward_chains.h says which forward feeds which.
namespace terrace {

// Throws UsageError, naming the task or the unit, where the tasks cannot be a step: a unit or
// micro-batch that there is not, a backward without a forward, a unit that trains without a
// backward, hidden states or gradients that nothing has left, a micro-batch without a loss where
// others have one.
void check_tasks(const StepModel& model, std::int32_t micro_batches);

// Returns the order of micro-batches that the tasks have: layer-major where all that adds to a
// unit's gradient is done before anything else adds to another's.
MicroBatchOrder order_of_tasks(const StepModel& model);

}  // namespace terrace
