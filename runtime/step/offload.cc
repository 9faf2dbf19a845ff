#include "runtime/step/offload.h"

#include "runtime/step/lowering.h"

namespace terrace {

Draft add_movement(const StepModel& model, const StepPolicy& policy,
                   const std::vector<Stage>& stages, bool has_names) {
  return Lowering(model, policy, stages, has_names).run();
}

}  // namespace terrace
