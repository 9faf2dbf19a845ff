#pragma once

#include <cstdint>
#include <vector>

#include "runtime/step/draft.h"
#include "runtime/step/homes.h"
#include "runtime/step/schedule.h"

// The inside of the movement pass (runtime/step/movement.h). The pass goes through the tasks once
// and turns each into its ops and the movement for them. Each part of it moves one kind of thing:
// parameter_movement, activation_movement, gradient_movement and update_movement. pass_movement has
// the ops of the units themselves, rank_exchange the ops between ranks. All of them share the state
// that is defined here.
namespace terrace {

// The draft that is being made, and the task whose ops are being added. Borrows the model, the
// policy and the tasks.
struct MovementState {
  MovementState(const StepModel& model, const StepPolicy& policy, const std::vector<Task>& tasks,
                bool has_names);

  // Returns a compute op of the task. It touches constants and workspace, as every such op does.
  Op compute_op(const Task& task) const;
  // Adds the main op of the present task.
  void add_main(Op op, const Task& task);
  // Lets the op read the loss scale, by which the gradient of the loss is multiplied, if there is
  // one.
  void add_loss_scale(Op& op) const;
  // Returns the sums that routers leave of a micro-batch: of the layers [begin, end) among all that
  // have a router. An empty range where the step has none.
  Range router_sums_of(std::int32_t micro_batch, std::int32_t begin, std::int32_t end) const;

  // Returns a load to the compute tier that the present task needs. `target_bytes` are held from
  // its issue on.
  Load load_of_now(std::int32_t earliest, std::size_t target_bytes) const;
  // Returns a load from a home to the tier `where` that the present task needs.
  Load load_from(const Range& home, Tier where, std::int32_t earliest,
                 std::size_t target_bytes) const;
  // Returns `home`, or a copy of it in the tier `where`.
  Range brought(const Mover::Labels& labels, std::int32_t chunk, const Range& home, Tier where,
                std::int32_t earliest = 0);
  // Copies a chunk's range to its home, unless it is there already.
  void store_back(const Task& task, const Range& range, const Range& home, Account account);

  Mover store(const Mover::Labels& labels) { return Mover::store(draft, now, labels); }
  Range whole(BufferId buffer) const { return draft.whole(buffer); }
  Tier home_tier(Tier named) const { return named == Tier::kDevice ? compute : named; }
  static Mover::Labels labels(const Task& task, Account account) {
    return {task.unit, task.group, task.micro_batch, task.parts, account};
  }

  const StepModel& model;
  const StepPolicy& policy;
  const std::vector<Task>& tasks;
  const Tier compute;
  Draft draft;
  const SharedBuffers shared;
  std::int32_t now = 0;  // the present task
};

}  // namespace terrace
