#include "runtime/step/task_order.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "base/usage_error.h"
#include "runtime/step/forward_chains.h"

namespace terrace {
namespace {

std::string name_of(const StepTask& task) {
  return fmt::format("the {} of unit {}, micro-batch {}",
                     task.pass == UnitPass::kBackward ? "backward" : "forward", task.unit,
                     task.micro_batch);
}

class TaskCheck {
 public:
  TaskCheck(const StepModel& model, std::int32_t micro_batches)
      : model_(model), micro_batches_(micro_batches) {}

  void run() {
    std::vector<bool> has_gradient(model_.unit_count());
    std::vector<bool> has_loss(static_cast<std::size_t>(micro_batches_));
    bool any_loss = false;
    for (const StepTask& task : model_.tasks) {
      check_numbers(task);
      check_pass(task);
      check_hidden(task, forward_of(task));
      const std::vector<UnitStep>& steps = steps_of(task);
      if (UnitModel::writes(steps, Role::kGradient)) has_gradient[task.unit] = true;
      if (!UnitModel::writes(steps, Role::kLosses)) continue;
      if (has_loss[task.micro_batch]) {
        refuse(task, "writes the loss of its micro-batch a second time",
               "let only one task of a micro-batch compute the loss");
      }
      has_loss[task.micro_batch] = any_loss = true;
    }
    check_backwards(has_gradient);
    for (std::int32_t m = 0; any_loss && m < micro_batches_; ++m) {
      if (has_loss[m]) continue;
      throw UsageError(
          fmt::format("schedule: no task computes the loss of micro-batch {}", m),
          "add the task that computes it, or describe a step with fewer micro-batches");
    }
  }

 private:
  const std::vector<UnitStep>& steps_of(const StepTask& task) const {
    const UnitModel& unit = model_.units.at(task.unit);
    const bool is_forward = task.pass == UnitPass::kForward && !model_.fuses_passes(task.unit);
    return is_forward ? unit.forward : unit.backward;
  }

  [[noreturn]] static void refuse(const StepTask& task, const std::string& what,
                                  const std::string& remedy) {
    throw UsageError(fmt::format("schedule: {} {}", name_of(task), what), remedy);
  }

  void check_numbers(const StepTask& task) const {
    if (task.unit < 0 || task.unit > model_.last_unit()) {
      refuse(
          task,
          fmt::format("belongs to a unit that is not described: only {} are", model_.units.size()),
          "describe it, or leave the task out");
    }
    if (task.micro_batch < 0 || task.micro_batch >= micro_batches_) {
      refuse(task,
             fmt::format("belongs to a micro-batch that the step does not have: it has only {}",
                         micro_batches_),
             "raise PlacementRequest::micro_batches, or leave the task out");
    }
  }

  void check_pass(const StepTask& task) const {
    if (task.pass == UnitPass::kRecompute) {
      refuse(task, "is a recomputation",
             "leave it out: Terrace adds the recomputations that a plan needs");
    }
    if (task.pass == UnitPass::kForward) return;
    if (model_.fuses_passes(task.unit)) {
      refuse(task, "is part of its forward: the unit is a head",
             "leave it out, or describe the unit as a block");
    }
    if (model_.joins_micro_batches(task.unit)) {
      refuse(task, "is added automatically at the end of the step: the unit is an embedding",
             "leave it out, or describe the unit as a block");
    }
    if (model_.units.at(task.unit).backward.empty()) {
      refuse(task, "is not described", "describe the unit's backward, or leave the task out");
    }
  }

  // Returns the forward that the task is, or that a backward belongs to; -1 if that has none.
  std::int32_t forward_of(const StepTask& task) {
    if (task.pass == UnitPass::kBackward) return chains_.end(task.unit, task.micro_batch);
    has_hidden_gradient_.push_back(false);
    const std::int32_t forward =
        chains_.add(task.unit, task.micro_batch, model_.units[task.unit].inputs);
    // A head's backward is a part of its forward.
    if (model_.fuses_passes(task.unit)) chains_.end(task.unit, task.micro_batch);
    return forward;
  }

  bool leaves_hidden(std::int32_t forward) const {
    return UnitModel::writes(model_.units.at(chains_.at(forward).unit).forward, Role::kHiddenOut);
  }

  void check_hidden(const StepTask& task, std::int32_t forward) {
    if (forward < 0) {
      refuse(task, "has no forward before it",
             "put the unit's forward of this micro-batch before it");
    }
    const bool names_inputs = !model_.units[task.unit].inputs.empty();
    if (names_inputs && chains_.at(forward).use > 0) {
      refuse(task, "uses a second time a unit that names its inputs",
             "use it once in a micro-batch, or let it read the output before it");
    }
    const std::vector<std::int32_t>& inputs = chains_.at(forward).inputs;
    if (model_.joins_micro_batches(task.unit) && !inputs.empty()) {
      refuse(task, "does not come first: the unit is an embedding",
             "begin the micro-batch with it, once, or describe the unit as a block");
    }
    const std::vector<UnitStep>& steps = steps_of(task);
    const bool has_inputs =
        inputs.size() == std::max<std::size_t>(1, model_.units[task.unit].inputs.size()) &&
        std::ranges::all_of(inputs, [this](std::int32_t input) { return leaves_hidden(input); });
    if (UnitModel::reads(steps, Role::kHidden) && !has_inputs) {
      refuse(task, "reads hidden states, but the forward before it writes none",
             "put the unit that writes them before it");
    }
    if (UnitModel::reads(steps, Role::kHiddenGradient) &&
        !has_hidden_gradient_.at(static_cast<std::size_t>(forward))) {
      refuse(task, "reads the gradient of its output, but nothing before it has written that",
             "put the backward of the unit that has read this output before it");
    }
    if (!UnitModel::writes(steps, Role::kHiddenGradientOut)) return;
    if (inputs.empty()) {
      refuse(task, "writes the gradient of its input, but no unit comes before it",
             "leave that out of the unit's backward");
    }
    for (const UnitStep& step : steps) {
      for (const UnitAccess& write : step.writes) {
        if (write.role != Role::kHiddenGradientOut) continue;
        const std::int32_t input = inputs.at(static_cast<std::size_t>(write.number));
        if (chains_.at(input).has_backward) {
          refuse(task, "writes the gradient of its input after the backward that reads that",
                 "put it before the backward of the unit whose output it has read");
        }
        has_hidden_gradient_.at(static_cast<std::size_t>(input)) = true;
      }
    }
  }

  void check_backwards(const std::vector<bool>& has_gradient) {
    for (std::int32_t u = 0; u <= model_.last_unit(); ++u) {
      if (!model_.trains(u) || model_.joins_micro_batches(u) || has_gradient[u]) continue;
      throw UsageError(fmt::format("schedule: unit {} trains, but nothing writes its gradient", u),
                       "add its backward, or describe all its elements as frozen");
    }
    for (const ForwardChains::Forward& forward : chains_.all()) {
      if (forward.has_backward || !model_.trains(forward.unit) ||
          model_.joins_micro_batches(forward.unit)) {
        continue;
      }
      refuse({UnitPass::kForward, forward.unit, forward.micro_batch},
             "has no backward, but the unit trains", "add the unit's backward of this micro-batch");
    }
    for (std::int32_t u = 0; u <= model_.last_unit(); ++u) {
      if (model_.joins_micro_batches(u) && model_.trains(u)) check_embedding(u);
    }
  }

  // Its backward reads a gradient of every micro-batch.
  void check_embedding(std::int32_t unit) {
    for (std::int32_t m = 0; m < micro_batches_; ++m) {
      const std::int32_t forward = chains_.last_of(unit, m);
      if (forward >= 0 && has_hidden_gradient_.at(static_cast<std::size_t>(forward))) continue;
      throw UsageError(
          fmt::format("schedule: nothing writes the gradient of the embedding's output in "
                      "micro-batch {}",
                      m),
          "begin each micro-batch with the embedding's forward, and add the backward of the unit "
          "after it");
    }
  }

  const StepModel& model_;
  const std::int32_t micro_batches_;
  ForwardChains chains_;
  std::vector<bool> has_hidden_gradient_;  // of the forward's output; by its number
};

}  // namespace

void check_tasks(const StepModel& model, std::int32_t micro_batches) {
  TaskCheck(model, micro_batches).run();
}

MicroBatchOrder order_of_tasks(const StepModel& model) {
  std::vector<bool> is_done(model.unit_count());
  std::int32_t last = -1;
  for (const StepTask& task : model.tasks) {
    if (task.pass != UnitPass::kBackward && !model.fuses_passes(task.unit)) continue;
    if (task.unit != last && is_done[task.unit]) return MicroBatchOrder::kMicroBatchMajor;
    is_done[task.unit] = true;
    last = task.unit;
  }
  return MicroBatchOrder::kLayerMajor;
}

}  // namespace terrace
