#include "runtime/step/offload.h"

#include "runtime/step/lowering.h"

namespace terrace {

Draft add_movement(const StepModel& model, const StepPolicy& policy, const std::vector<Task>& tasks,
                   bool has_names) {
  return Lowering(model, policy, tasks, has_names).run();
}

}  // namespace terrace
