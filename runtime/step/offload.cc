#include "runtime/step/offload.h"

#include "runtime/step/lowering.h"

namespace terrace {

Draft add_movement(const StepModel& model, const StepPolicy& policy,
                   const std::vector<Stage>& stages, const FetchPlan& plan) {
  return Lowering(model, policy, stages, plan).run();
}

}  // namespace terrace
