#pragma once

#include <cstdint>
#include <vector>

#include "runtime/step/schedule.h"

// The order of a step's compute where it comes from outside (StepModel::tasks): from a trainer that
// has its own, and compiled like Terrace's. A unit may be used several times in the forward of a
// micro-batch. What passes from unit to unit then follows the order of the forwards: the hidden
// states that one leaves are the input of the next of the same micro-batch, and a backward belongs
// to the last forward of its unit and micro-batch that had none so far.
namespace terrace {

// Throws UsageError, naming the task or the unit, where the tasks cannot be a step: a unit or
// micro-batch that there is not, a backward without a forward, a unit that trains without a
// backward, hidden states or gradients that nothing has left, a micro-batch without a loss where
// others have one.
void check_tasks(const StepModel& model, std::int32_t micro_batches);

// Returns their compute, in order, with each task's place in the chain of its micro-batch. Without
// a backward, those of the forward alone. The tasks are right.
std::vector<Task> tasks_from_outside(const StepModel& model, bool has_backward);

// Returns the order of micro-batches that the tasks have: layer-major where all that adds to a
// unit's gradient is done before anything else adds to another's.
MicroBatchOrder order_of_tasks(const StepModel& model);

}  // namespace terrace
