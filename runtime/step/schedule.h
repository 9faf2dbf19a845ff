#pragma once

#include <cstdint>
#include <vector>

#include "runtime/step/program.h"
#include "runtime/step/step_model.h"
#include "runtime/step/step_policy.h"

namespace terrace {

// One position in the order of a step: a compute op or an update. Movement is added around them
// later.
struct Task {
  OpKind kind = OpKind::kForward;
  Message message = Message::kNone;  // of kSend and kReceive
  std::int32_t unit = -1;
  std::int32_t micro_batch = -1;
  std::int32_t chunk = -1;
  Parts parts = kOfThisStep;
  // Of compute from an outside schedule, where the unit stands among the forwards of its
  // micro-batch: it may stand there several times. -1: as in the model.
  std::int32_t place = -1;
  std::int32_t use = 0;  // likewise: how many forwards of the unit come before it there

  bool is_deferred() const { return parts == kOfStepBefore; }
  std::int32_t in_chain() const { return place >= 0 ? place : unit; }
  friend bool operator==(const Task&, const Task&) = default;
};

// The schedule pass: the compute of one step in order, micro-batch-major or layer-major, and the
// updates. Where they wait for the norm they are deferred: the update of unit u stands one unit
// ahead of the next step's forward of u. Otherwise it stands behind what finishes its gradient. Of
// a pipeline: this stage's part, with what it sends and receives.
// Where the model has tasks from outside, their order is kept, and updates are added to it alone.
std::vector<Task> schedule_step(const StepModel& model, const StepPolicy& policy);

// The recompute pass: before each backward of a unit whose activations are not kept, what it needs
// of its forward again.
std::vector<Task> add_recompute(const StepModel& model, const StepPolicy& policy,
                                const std::vector<Task>& tasks);

// The tasks that use each unit's parameters, ascending.
std::vector<std::vector<std::int32_t>> parameter_uses(const StepModel& model,
                                                      const std::vector<Task>& tasks);

}  // namespace terrace
