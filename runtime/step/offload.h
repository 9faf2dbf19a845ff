#pragma once

#include <cstdint>
#include <vector>

#include "runtime/step/draft.h"
#include "runtime/step/schedule.h"

namespace terrace {

// The offload pass: gives every task its op and its buffers, adds the loads and stores of every
// state whose home is not where it is used, sums gradients where they live, and runs updates where
// the optimizer state lives. Between two uses parameters stay where these are neighbours, and every
// load belongs to the task that needs it. What else there is room for is said by a FetchPlan
// (runtime/step/linear_draft.h), which applies to the draft as it is.
// `has_names`: see Draft.
Draft add_movement(const StepModel& model, const StepPolicy& policy, const std::vector<Task>& tasks,
                   bool has_names = true);

}  // namespace terrace
