#pragma once

#include <cstdint>
#include <vector>

#include "runtime/step/draft.h"
#include "runtime/step/schedule.h"

namespace terrace {

// The movement pass. It gives every task its op and its buffers, adds loads and stores for every
// state whose home is not where it is used, sums gradients where they live, and runs updates where
// the optimizer state lives. In the draft, parameters stay between two uses only if these are
// neighbours, and every load belongs to the task that needs it. A FetchPlan
// (runtime/step/linear_draft.h) says what else there is room for. It is applied to the draft
// without changing it.
// `has_names`: see Draft.
Draft add_movement(const StepModel& model, const StepPolicy& policy, const std::vector<Task>& tasks,
                   bool has_names = true);

}  // namespace terrace
