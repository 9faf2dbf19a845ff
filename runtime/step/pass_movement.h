#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <vector>

#include "runtime/step/activation_movement.h"
#include "runtime/step/gradient_movement.h"
#include "runtime/step/movement_state.h"
#include "runtime/step/parameter_movement.h"

namespace terrace {

// Adds the ops of units' passes: an op for each step, on the buffers that the step touches.
class PassMovement {
 public:
  // Borrows all. `gradients` is null where a step has no backward.
  PassMovement(MovementState& state, ParameterMovement& parameters, ActivationMovement& activations,
               GradientMovement* gradients);

  // Adds the part of a pass that a task is, and the movement that follows it.
  void add_part(const Task& task);
  // Adds the backward of a unit for all micro-batches. If the step measures the gradient of the
  // first micro-batch, the backward of that one alone comes before it.
  void add_joined_backward(const Task& task);
  // Adds a send or a receive of the sums of routers.
  void pass_router_sums(const Task& task);

 private:
  // A gradient that a pass writes.
  struct Gradient {
    Range range;
    bool adds = false;  // to what is there, instead of replacing it
  };
  // The buffers of a pass: by role; by number those between its steps, its inputs and its groups.
  struct Operands {
    std::array<Range, kRoleCount> ranges{};
    std::vector<Range> between;
    std::vector<Range> inputs;
    std::vector<Gradient> input_gradients;
    std::vector<Range> parameters;
    std::vector<Gradient> gradients;

    Range& of(Role role) { return ranges.at(static_cast<std::size_t>(role)); }
    // Forgets all. Keeps the memory, because a step has tens of thousands of passes.
    void clear();
  };

  // Finds the buffers of a part's steps that no part before it has found.
  void find_operands(const Task& task);
  void find_parameters(const Task& task);
  void find(const Task& task, const UnitAccess& access, bool writes);
  Range between(const Task& task, const UnitAccess& access);
  Range router_sums(const Task& task) const;
  bool has_buffer(const Task& task, const UnitAccess& access) const;
  // Returns the access of a step to a buffer that has been found.
  Access found(const Task& task, const UnitAccess& access);
  bool adds(const UnitAccess& access) const;
  void add_compute(const Task& task, const UnitStep& step, std::int32_t number);
  void add_exchange(const Task& task, const UnitStep& step);
  void settle(const Task& task);
  void settle_gradients(const Task& task);
  std::vector<std::int32_t> finished_groups(const Task& task) const;
  void add_first_backward(const Task& task);
  void losses_to_host();
  void router_sums_to_host();
  // Returns the rows of all ranks, gathered from each rank's own ones. Without sequence parallelism
  // it returns `own`.
  Range gather_rows(const Task& task, const Range& own);

  MovementState& state_;
  ParameterMovement& parameters_;
  ActivationMovement& activations_;
  GradientMovement* const gradients_;
  // The passes whose parts are being added, by micro-batch: a part of all micro-batches may come
  // before the next part. Passes of one part share the entry -1.
  std::map<std::int32_t, Operands> passes_;
  Operands* operands_ = nullptr;        // of the task's pass
  std::int32_t last_loss_ = -1;         // the last task that writes a loss
  std::int32_t last_router_sums_ = -1;  // likewise sums of a router
};

}  // namespace terrace
