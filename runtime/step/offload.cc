#include "runtime/step/offload.h"

#include "runtime/step/lowering.h"

namespace terrace {

Draft add_movement(const StepModel& model, const StepPolicy& policy,
                   const std::vector<Stage>& stages) {
  return Lowering(model, policy, stages).run();
}

}  // namespace terrace
