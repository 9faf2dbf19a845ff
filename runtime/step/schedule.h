#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "runtime/step/period.h"
#include "runtime/step/program.h"
#include "runtime/step/step_model.h"
#include "runtime/step/step_policy.h"

namespace terrace {

// One position in the order of a step: a part of a unit's pass, a message or an update. Movement is
// added around it later.
struct Task {
  OpKind kind = OpKind::kForward;
  Message message = Message::kNone;  // of kSend and kReceive
  std::int32_t unit = -1;
  std::int32_t group = -1;  // of an update, and of a message with parameters or their gradient
  std::int32_t micro_batch = -1;
  std::int32_t chunk = -1;
  // The steps of a pass that the task computes, and how many parts of the pass stand before it. An
  // update that is not deferred has the number of the part that it follows.
  StepSpan steps = {};
  std::int32_t part = 0;
  Parts parts = kOfThisStep;
  // The forward that the task is or belongs to, by its number in ForwardChains. Messages that carry
  // hidden states or their gradient belong to the forward whose output that is. -1: to none.
  std::int32_t forward = -1;
  std::vector<std::int32_t> inputs = {};  // the forwards whose outputs this one reads
  std::int32_t use = 0;  // how many forwards of the unit come before it in the micro-batch
  // For how many micro-batches the task stands, from `micro_batch` on: see period.h.
  std::int32_t times = 1;

  bool is_deferred() const { return parts == kOfStepBefore; }
  friend bool operator==(const Task&, const Task&) = default;
};

// The schedule pass. Returns the compute of one step in order, micro-batch-major or layer-major,
// with the updates. Updates that wait for the norm are deferred: a group's update comes one part of
// a pass ahead of the next step's first part that uses the group. Another update follows the task
// that finishes its gradient. In a pipeline these are the tasks of this rank's stage, with its
// messages, and every stage but the first makes its deferred updates before its first pass. If the
// model has tasks from outside, their order is kept, and only updates are added. In
// micro-batch-major order there are tasks of the listed micro-batches alone; other orders list
// each.
std::vector<Task> schedule_step(const StepModel& model, const StepPolicy& policy,
                                const std::vector<ListedMicroBatch>& listed);
// Does the same with tasks for every micro-batch.
std::vector<Task> schedule_step(const StepModel& model, const StepPolicy& policy);

// The recompute pass. Adds, before each backward of a unit whose activations are not kept, the part
// of its forward that the backward needs.
std::vector<Task> add_recompute(const StepModel& model, const StepPolicy& policy,
                                std::vector<Task> tasks);

// Returns the steps of the pass that a compute task is a part of.
const std::vector<UnitStep>& pass_of(const StepModel& model, const Task& task);
// Returns whether the task computes a part of a unit's pass, for one micro-batch.
bool computes(const Task& task);
// Calls visit(index) for each group whose parameters the task reads, once, in the order in which
// its steps name them. The index is that of UnitModel::groups.
template <typename Visit>
void visit_groups(const StepModel& model, const Task& task, Visit visit) {
  if (model.units.at(task.unit).groups.empty()) return;
  const std::vector<UnitStep>& pass = pass_of(model, task);
  const auto is_in = [&](std::int32_t step, std::int32_t index) {
    const std::vector<std::int32_t>& groups = pass[static_cast<std::size_t>(step)].groups;
    return std::ranges::find(groups, index) != groups.end();
  };
  for (std::int32_t s = task.steps.begin; s < task.steps.end; ++s) {
    for (const std::int32_t index : pass[static_cast<std::size_t>(s)].groups) {
      std::int32_t before = task.steps.begin;
      while (before < s && !is_in(before, index)) ++before;
      if (before == s) visit(index);
    }
  }
}

// Returns for each group the tasks that use its parameters, ascending.
std::vector<std::vector<std::int32_t>> parameter_uses(const StepModel& model,
                                                      const std::vector<Task>& tasks);

}  // namespace terrace
