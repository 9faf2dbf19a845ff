#pragma once

#include <cstdint>
#include <vector>

#include "runtime/step/draft.h"
#include "runtime/step/schedule.h"

namespace terrace {

// What is known of the future when movement is added: decided by runtime/step/residency.
struct FetchPlan {
  // Per unit and use but the first, whether the parameters stay in the compute tier since the use
  // before. Empty: only where the two uses are neighbours.
  std::vector<std::vector<bool>> stays;
  // Per load, in the order in which they are made, the stage at which it is issued; below 0 it is
  // one of the step before, counted from its end. Empty: the stage that needs it.
  std::vector<std::int32_t> issue_stage;
};

// The offload pass: gives every stage its op and its buffers, adds the loads and stores of every
// state whose home is not where it is used, sums gradients where they live, and runs updates where
// the optimizer state lives.
Draft add_movement(const StepModel& model, const StepPolicy& policy,
                   const std::vector<Stage>& stages, const FetchPlan& plan);

}  // namespace terrace
