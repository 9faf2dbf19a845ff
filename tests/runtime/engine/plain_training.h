#pragma once

#include <vector>

#include "tests/runtime/engine/toy_trainer.h"

namespace terrace {

// The toy trainer's training without a runtime: everything in vectors, one task after the other, no
// clipping. A TierRuntime must train exactly the same.
class PlainTraining {
 public:
  PlainTraining(const ComputeModel& model, std::vector<StepTask> tasks,
                const OptimizerOptions& optimizer)
      : model_(model), tasks_(std::move(tasks)), optimizer_(optimizer), trainer_(model) {
    const auto units = static_cast<std::int32_t>(model.units.size());
    for (std::int32_t u = 0; u < units; ++u) {
      const auto elements = static_cast<std::size_t>(model.groups[u].padded_elements);
      Unit& unit = units_.emplace_back();
      for (std::size_t i = 0; i < elements; ++i) {
        unit.parameters.push_back(toy_parameter(model, u, static_cast<std::int64_t>(i)));
      }
      unit.gradient.resize(elements);
      for (auto& slot : unit.slots) slot.resize(elements);
    }
  }

  // Takes a step and returns its loss.
  double step(std::int64_t step, const std::vector<ToyInput>& inputs, double learning_rate) {
    chains_.assign(inputs.size(), {});
    losses_.assign(inputs.size(), 0);
    for (Unit& unit : units_) unit.has_gradient = false;
    for (const StepTask& task : tasks_) run(task, inputs);
    StepScalars scalars;
    scalars.step = static_cast<std::uint32_t>(step);
    scalars.learning_rate = static_cast<float>(learning_rate);
    scalars.of_rule =
        optimizer_.rule->step_scalars(optimizer_.numbers, step, scalars.learning_rate);
    for (std::size_t u = 0; u < units_.size(); ++u) update(u, scalars);
    double sum = 0;
    for (const double loss : losses_) sum += loss;
    return sum / static_cast<double>(terms(inputs));
  }

  const std::vector<float>& parameters(std::size_t unit) const { return units_[unit].parameters; }
  const std::vector<float>& slot(std::size_t unit, std::size_t slot) const {
    return units_[unit].slots.at(slot);
  }
  static std::int64_t terms(const std::vector<ToyInput>& inputs) {
    return static_cast<std::int64_t>(inputs.size()) * kToyRows;
  }

 private:
  struct Unit {
    std::vector<float> parameters;
    std::vector<float> gradient;
    std::array<std::vector<float>, kMostSlots> slots;
    bool has_gradient = false;
  };
  // The forward of a unit for a micro-batch, and the data that it leaves.
  struct Link {
    std::int32_t unit = 0;
    bool is_done = false;
    std::vector<float> hidden = std::vector<float>(kToyRows * kToyWidth);
    std::vector<float> saved = hidden;
    std::vector<float> gradient = hidden;
  };

  static std::byte* bytes(auto& values) { return reinterpret_cast<std::byte*>(values.data()); }

  void run(const StepTask& task, const std::vector<ToyInput>& inputs) {
    const auto m = static_cast<std::size_t>(task.micro_batch);
    std::vector<Link>& chain = chains_[m];
    const bool is_head = model_.units[task.unit].kind == UnitKind::kHead;
    std::size_t place = chain.size();
    if (task.pass == UnitPass::kForward) {
      chain.push_back({.unit = task.unit, .is_done = is_head});
    } else {
      do --place;
      while (chain[place].unit != task.unit || chain[place].is_done);
      chain[place].is_done = true;
    }
    Unit& unit = units_[task.unit];
    const bool is_backward = is_head || task.pass == UnitPass::kBackward;
    UnitMemory memory;
    memory.of(Role::kParameters) = bytes(unit.parameters);
    memory.of(Role::kTokens) =
        reinterpret_cast<std::byte*>(const_cast<ToyInput*>(inputs.data() + m));
    memory.of(Role::kHiddenOut) = bytes(chain[place].hidden);
    memory.of(Role::kSaved) = bytes(chain[place].saved);
    memory.of(Role::kHiddenGradient) = bytes(chain[place].gradient);
    memory.of(Role::kLosses) = reinterpret_cast<std::byte*>(&losses_[m]);
    if (place > 0) {
      memory.of(Role::kHidden) = bytes(chain[place - 1].hidden);
      memory.of(Role::kHiddenGradientOut) = bytes(chain[place - 1].gradient);
    }
    memory.gradient_scale = 1.0F / static_cast<float>(terms(inputs));
    const bool trains = model_.groups[task.unit].trained_elements() > 0;
    if (is_backward && trains) {
      memory.of(Role::kGradient) = bytes(unit.gradient);
      memory.gradient_mode = unit.has_gradient ? GradientMode::kAccumulate : GradientMode::kAssign;
      unit.has_gradient = true;
    }
    const UnitPass pass = is_backward ? UnitPass::kBackward : UnitPass::kForward;
    trainer_.run({}, {task.unit, pass, 0, task.micro_batch}, memory);
  }

  void update(std::size_t u, const StepScalars& scalars) {
    if (model_.groups[u].trained_elements() == 0) return;
    Unit& unit = units_[u];
    ParameterUpdate update;
    update.gradient = view(std::span(unit.gradient));
    update.master = view(std::span(unit.parameters));
    update.parameter = update.master;
    for (std::size_t s = 0; s < optimizer_.rule->slots.size(); ++s) {
      update.slots.at(s) = view(std::span(unit.slots.at(s)));
    }
    update.options = optimizer_.numbers;
    update.decayed_elements = model_.groups[u].decayed_elements;
    update.scalars = &scalars;
    optimizer_.rule->reference(update);
  }

  const ComputeModel& model_;
  const std::vector<StepTask> tasks_;
  const OptimizerOptions optimizer_;
  ToyTrainer trainer_;
  std::vector<Unit> units_;
  std::vector<std::vector<Link>> chains_;  // by micro-batch
  std::vector<double> losses_;
};

// Returns the tasks micro-batch by micro-batch, with the units in their order. The backward goes
// down to the lowest unit that trains.
inline std::vector<StepTask> usual_tasks(const ComputeModel& model, std::int32_t micro_batches) {
  std::vector<StepTask> tasks;
  const auto units = static_cast<std::int32_t>(model.units.size());
  std::int32_t lowest = 0;
  while (model.groups[lowest].trained_elements() == 0) ++lowest;
  for (std::int32_t m = 0; m < micro_batches; ++m) {
    for (std::int32_t u = 0; u < units; ++u) tasks.push_back({UnitPass::kForward, u, m});
    for (std::int32_t u = units - 1; u >= lowest; --u) {
      const bool is_apart = model.units[u].kind == UnitKind::kBlock;
      if (is_apart) tasks.push_back({UnitPass::kBackward, u, m});
    }
  }
  return tasks;
}

}  // namespace terrace
