#include "runtime/step/schedule.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <utility>

#include "base/check.h"
#include "runtime/step/forward_chains.h"

namespace terrace {
namespace {

// Adds a pass of a unit to the tasks: one task for each part of the pass.
void add_parts(const StepModel& model, Task task, std::vector<Task>& tasks) {
  const std::vector<UnitStep>& pass = pass_of(model, task);
  task.part = 0;
  for (const StepSpan& steps : UnitModel::parts(pass)) {
    task.steps = steps;
    tasks.push_back(task);
    ++task.part;
  }
}

// Adds the same pass of several micro-batches, part by part.
void add_parts_of_all(const StepModel& model, const std::vector<Task>& passes,
                      std::vector<Task>& tasks) {
  std::vector<Task> parts;
  add_parts(model, passes.front(), parts);
  for (const Task& part : parts) {
    for (Task task : passes) {
      task.steps = part.steps;
      task.part = part.part;
      tasks.push_back(std::move(task));
    }
  }
}

class Scheduler {
 public:
  Scheduler(const StepModel& model, const StepPolicy& policy,
            const std::vector<ListedMicroBatch>& listed)
      : model_(model),
        policy_(policy),
        listed_(listed),
        lowest_trained_(model.lowest_trained()),
        order_(model.unit_count(), kNotThere) {
    for (const StepTask& task : model.tasks) add_unit(task.unit);
    for (std::int32_t u = 0; u <= model.last_unit(); ++u) {
      if (model.has_unit(u)) add_unit(u);
    }
  }

  std::vector<Task> run() {
    if (model_.tokens_bytes != 0) tasks_.push_back({.kind = OpKind::kInput});
    if (!model_.tasks.empty()) {
      from_outside();
    } else if (model_.pipeline.stages > 1) {
      pipelined();
    } else if (policy_.order == MicroBatchOrder::kLayerMajor) {
      layer_major();
    } else {
      micro_batch_major();
    }
    if (policy_.has_backward) {
      for (const std::int32_t unit : units_) {
        if (model_.joins_micro_batches(unit) && model_.trains(unit)) {
          tasks_.push_back({.kind = OpKind::kBackward, .unit = unit});
        }
      }
      tasks_.push_back({.kind = OpKind::kNormFinish});
    }
    return std::move(tasks_);
  }

 private:
  void layer_major() {
    for (std::int32_t u = 0; u <= model_.last_unit(); ++u) {
      if (has_forward(u)) emit(OpKind::kForward, u, {0, policy_.micro_batches});
    }
    step_scalars();
    for (std::int32_t u = model_.last_unit(); u >= 0; --u) {
      if (has_backward(u)) emit(OpKind::kBackward, u, {0, policy_.micro_batches}, true);
    }
  }

  void micro_batch_major() {
    for (const auto& [m, times] : listed_) {
      const std::size_t first = tasks_.size();
      for (std::int32_t u = 0; u <= model_.last_unit(); ++u) {
        if (has_forward(u)) emit(OpKind::kForward, u, only(m));
      }
      const bool last = m == policy_.micro_batches - 1;
      if (last) step_scalars();
      for (std::int32_t u = model_.last_unit(); u >= 0; --u) {
        if (has_backward(u)) emit(OpKind::kBackward, u, only(m), last);
      }
      for (std::size_t t = first; t < tasks_.size(); ++t) tasks_[t].times = times;
    }
  }

  // Keeps the order of model.tasks. A unit's update follows the last task that adds to its
  // gradient.
  void from_outside() {
    std::vector<Task> given;
    for (const StepTask& task : model_.tasks) {
      const bool is_backward = task.pass == UnitPass::kBackward;
      if (is_backward && !policy_.has_backward) continue;
      const OpKind kind =
          !is_backward && has_forward(task.unit) ? OpKind::kForward : OpKind::kBackward;
      given.push_back({.kind = kind, .unit = task.unit, .micro_batch = task.micro_batch});
    }
    std::vector<std::size_t> last_gradient(model_.unit_count());
    for (std::size_t t = 0; t < given.size(); ++t) {
      if (given[t].kind != OpKind::kForward) last_gradient.at(given[t].unit) = t;
    }
    for (std::size_t t = 0; t < given.size(); ++t) {
      const std::int32_t unit = given[t].unit;
      const bool finishes = given[t].kind != OpKind::kForward && last_gradient.at(unit) == t;
      if (finishes && updates_at_once(unit)) step_scalars();
      emit(given[t].kind, unit, only(given[t].micro_batch), finishes);
    }
    step_scalars();  // also if every update is deferred: the next step's updates read them
  }

  // Where units of two stages use the same parameters, the updated parameters come first and their
  // gradient goes last, on both sides, because messages of one direction have one order.
  void pipelined() {
    const PipelineCut& cut = model_.pipeline;
    if (policy_.has_backward) receive_updated();
    // A later stage makes all its updates while it waits for its first input. If an update came
    // after that input, the input of the stage behind would be late by this time, too.
    if (cut.stage > 0) updates_to(first_uses_.size());
    const PipelineShape shape{policy_.pipeline_schedule, cut.stages, policy_.micro_batches,
                              cut.virtual_stages};
    for (const PipelineSlot& slot : pipeline_slots(shape, cut.stage)) {
      const Piece piece = piece_of(slot.virtual_stage);
      if (slot.pass == PipelinePass::kForward) {
        piece_forward(piece, slot.micro_batch);
      } else if (policy_.has_backward) {
        piece_backward(piece, slot.micro_batch);
      }
    }
    if (policy_.has_backward) pass_gradients();
  }

  // Receives the parameters that another stage updates and this one uses, too.
  void receive_updated() {
    for (std::int32_t g = 0; g < model_.group_count(); ++g) {
      if (!model_.borrows(g)) continue;
      for_chunks({.kind = OpKind::kReceive,
                  .message = Message::kUpdated,
                  .unit = model_.owner(g),
                  .group = g,
                  .parts = kOfStepBefore});
    }
  }

  // Sends gradients of such parameters to the stage that updates them, and receives them there.
  void pass_gradients() {
    for (std::int32_t g = 0; g < model_.group_count(); ++g) {
      if (!model_.passes_gradient(g)) continue;
      Task pass{.message = Message::kBorrowedGradient, .unit = model_.owner(g), .group = g};
      pass.kind = OpKind::kSend;
      if (model_.borrows(g)) for_chunks(pass);
      pass.kind = OpKind::kReceive;
      if (model_.lends(g)) for_chunks(pass);
    }
  }

  // Neighbouring units of this pipeline stage, [begin, end).
  struct Piece {
    std::int32_t begin = 0;
    std::int32_t end = 0;
  };

  Piece piece_of(std::int32_t virtual_stage) const {
    const PipelineCut& cut = model_.pipeline;
    const auto piece = static_cast<std::size_t>(virtual_stage * cut.stages + cut.stage);
    return {cut.piece_begins.at(piece), cut.piece_begins.at(piece + 1)};
  }

  void piece_forward(const Piece& piece, std::int32_t m) {
    if (piece.begin > 0) {
      receive(Message::kHidden, piece.begin - 1, m);
      if (policy_.has_backward && model_.passes_router_sums(0, piece.begin)) {
        receive(Message::kRouterSums, piece.begin - 1, m);
      }
    }
    for (std::int32_t u = piece.begin; u < piece.end; ++u) {
      if (has_forward(u)) emit(OpKind::kForward, u, only(m));
    }
    if (is_last(piece)) return;
    send(Message::kHidden, piece.end - 1, m);
    if (policy_.has_backward && model_.passes_router_sums(0, piece.end)) {
      send(Message::kRouterSums, piece.end - 1, m);
    }
  }

  void piece_backward(const Piece& piece, std::int32_t m) {
    const bool last = m == policy_.micro_batches - 1;
    const std::int32_t end = model_.last_unit() + 1;
    if (last) step_scalars();
    if (!is_last(piece) && has_gradient_of(piece.end - 1)) {
      receive(Message::kHiddenGradient, piece.end - 1, m);
      if (model_.passes_router_sums(piece.end, end)) {
        receive(Message::kLaterRouterSums, piece.end - 1, m);
      }
    }
    for (std::int32_t u = piece.end - 1; u >= piece.begin; --u) {
      if (has_backward(u)) emit(OpKind::kBackward, u, only(m), last);
    }
    if (piece.begin > 0 && has_gradient_of(piece.begin - 1)) {
      send(Message::kHiddenGradient, piece.begin - 1, m);
      if (model_.passes_router_sums(piece.begin, end)) {
        send(Message::kLaterRouterSums, piece.begin - 1, m);
      }
    }
  }

  // Returns whether the model ends with this piece.
  bool is_last(const Piece& piece) const { return piece.end > model_.last_unit(); }

  // Adds the task once for each chunk of its group that trains.
  void for_chunks(Task task) {
    for (task.chunk = 0; task.chunk < model_.trained_chunks(task.group); ++task.chunk) {
      tasks_.push_back(task);
    }
  }

  // Returns whether the unit has a forward of its own in this step.
  bool has_forward(std::int32_t unit) const {
    return !policy_.has_backward || !model_.fuses_passes(unit);
  }
  // Returns whether the unit has a backward for each micro-batch.
  bool has_backward(std::int32_t unit) const {
    return policy_.has_backward && !model_.joins_micro_batches(unit) && unit >= lowest_trained_ &&
           !model_.units[unit].backward.empty();
  }
  // Returns whether the gradient of a unit's output has a use.
  bool has_gradient_of(std::int32_t unit) const { return unit >= lowest_trained_; }

  // Neighbouring micro-batches, [begin, end).
  struct MicroBatches {
    std::int32_t begin = 0;
    std::int32_t end = 0;
  };
  static MicroBatches only(std::int32_t micro_batch) { return {micro_batch, micro_batch + 1}; }

  // Adds a pass of a unit, part by part; a part of all these micro-batches comes before the next
  // part. Before each part of the unit's first pass come the deferred updates that it and the next
  // part wait for. If the pass `finishes` gradients, the updates that are not deferred follow the
  // part that writes the gradient.
  void emit(OpKind kind, std::int32_t unit, MicroBatches micro_batches, bool finishes = false) {
    std::vector<Task> parts;
    add_parts(model_, {.kind = kind, .unit = unit}, parts);
    const bool is_first_pass = kind == OpKind::kForward || model_.fuses_passes(unit);
    std::vector<std::int32_t> left = own_groups(unit);
    for (Task& part : parts) {
      if (is_first_pass) updates_to(order_.at(unit) + static_cast<std::size_t>(part.part) + 1);
      for (part.micro_batch = micro_batches.begin; part.micro_batch < micro_batches.end;
           ++part.micro_batch) {
        tasks_.push_back(part);
      }
      if (!finishes) continue;
      const auto is_finished = [&](std::int32_t index) { return writes_gradient(part, index); };
      emit_updates(taken(left, is_finished), part.part);
    }
    if (finishes) emit_updates(left, std::ssize(parts) > 0 ? parts.back().part : 0);
  }

  // Send and receive a unit's output or the output's gradient, or the sums of the routers of the
  // units up to this one, or behind it.
  void send(Message message, std::int32_t unit, std::int32_t micro_batch) {
    tasks_.push_back(
        {.kind = OpKind::kSend, .message = message, .unit = unit, .micro_batch = micro_batch});
  }
  void receive(Message message, std::int32_t unit, std::int32_t micro_batch) {
    tasks_.push_back(
        {.kind = OpKind::kReceive, .message = message, .unit = unit, .micro_batch = micro_batch});
  }

  // Adds the deferred updates of first_uses_ up to this index. Updates are one part ahead, so that
  // the next part's update may run while this part computes.
  void updates_to(std::size_t last) {
    if (!policy_.has_backward) return;
    while (next_update_ < first_uses_.size() && next_update_ <= last) {
      for (const std::int32_t group : first_uses_[next_update_]) {
        if (policy_.defers_update(group)) emit_update(group, kOfStepBefore, 0);
      }
      ++next_update_;
    }
  }

  // Notes the unit's groups by the part of its first pass that is the first to use them. Those that
  // no part uses come with the last part.
  void add_unit(std::int32_t unit) {
    if (order_.at(unit) < kNotThere) return;
    order_.at(unit) = first_uses_.size();
    units_.push_back(unit);
    std::vector<Task> parts;
    const OpKind first_pass = has_forward(unit) ? OpKind::kForward : OpKind::kBackward;
    add_parts(model_, {.kind = first_pass, .unit = unit, .micro_batch = 0}, parts);
    std::vector<std::int32_t> left = own_groups(unit);
    for (const Task& part : parts) {
      first_uses_.push_back(taken(left, [&](std::int32_t index) {
        bool is_used = false;
        visit_groups(model_, part, [&](std::int32_t used) { is_used = is_used || used == index; });
        return is_used;
      }));
    }
    if (parts.empty()) first_uses_.emplace_back();
    first_uses_.back().insert(first_uses_.back().end(), left.begin(), left.end());
  }

  // Updates that the step before has left read that step's scalars, so they come first.
  void step_scalars() {
    if (!policy_.has_backward || policy_.updates_wait_for_norm || has_scalars_) return;
    has_scalars_ = true;
    updates_to(first_uses_.size());
    tasks_.push_back({.kind = OpKind::kStepScalars});
  }

  // Returns whether the update of a group of the unit's own is not deferred.
  bool updates_at_once(std::int32_t unit) const {
    return std::ranges::any_of(model_.units[unit].groups, [&](std::int32_t group) {
      return model_.owner(group) == unit && !policy_.defers_update(group);
    });
  }

  // Adds the updates that are not deferred, of these groups, behind a part of their unit's pass.
  void emit_updates(const std::vector<std::int32_t>& groups, std::int32_t part) {
    for (const std::int32_t group : groups) {
      if (!policy_.defers_update(group)) emit_update(group, kOfThisStep, part);
    }
  }

  void emit_update(std::int32_t group, Parts parts, std::int32_t part) {
    for_chunks({.kind = OpKind::kUpdate,
                .unit = model_.owner(group),
                .group = group,
                .part = part,
                .parts = parts});
  }

  // Returns the groups that are the unit's own.
  std::vector<std::int32_t> own_groups(std::int32_t unit) const {
    std::vector<std::int32_t> own = model_.units[unit].groups;
    std::erase_if(own, [&](std::int32_t group) { return model_.owner(group) != unit; });
    return own;
  }

  // Takes out of `left`, which has groups of one unit, those whose index in UnitModel::groups is
  // wanted, and returns them.
  template <typename Wanted>
  std::vector<std::int32_t> taken(std::vector<std::int32_t>& left, Wanted is_wanted) const {
    std::vector<std::int32_t> result;
    for (const std::int32_t group : left) {
      const std::vector<std::int32_t>& all = model_.units[model_.owner(group)].groups;
      const auto index = std::ranges::find(all, group) - all.begin();
      if (is_wanted(static_cast<std::int32_t>(index))) result.push_back(group);
    }
    std::erase_if(
        left, [&](std::int32_t group) { return std::ranges::find(result, group) != result.end(); });
    return result;
  }

  // Returns whether a part of a pass writes the gradient of a group, an index of UnitModel::groups.
  bool writes_gradient(const Task& part, std::int32_t index) const {
    const std::vector<UnitStep>& pass = pass_of(model_, part);
    const UnitAccess gradient{.role = Role::kGradient, .number = index};
    for (std::int32_t s = part.steps.begin; s < part.steps.end; ++s) {
      const std::vector<UnitAccess>& written = pass[static_cast<std::size_t>(s)].writes;
      if (std::ranges::find(written, gradient) != written.end()) return true;
    }
    return false;
  }

  const StepModel& model_;
  const StepPolicy& policy_;
  const std::vector<ListedMicroBatch>& listed_;
  const std::int32_t lowest_trained_;
  std::vector<Task> tasks_;
  std::vector<std::int32_t> units_;  // this pipeline stage's units, in the order of their first use
  // The groups of these units by the part that is the first to use them, in order.
  std::vector<std::vector<std::int32_t>> first_uses_;
  static constexpr std::size_t kNotThere = static_cast<std::size_t>(-1);
  std::vector<std::size_t> order_;  // by unit: the index of its first part in first_uses_
  std::size_t next_update_ = 0;     // of first_uses_
  bool has_scalars_ = false;
};

// Returns the number of the forward that a task is or belongs to; -1 if it belongs to none. A task
// that is a later part of a pass belongs to the forward of the part before it.
std::int32_t forward_of(const StepModel& model, const Task& task, ForwardChains& chains) {
  const bool is_message = task.kind == OpKind::kSend || task.kind == OpKind::kReceive;
  if (is_message && task.message == Message::kHidden) {
    // Received hidden states are fed on as if their forward had been computed here.
    return task.kind == OpKind::kReceive ? chains.add(task.unit, task.micro_batch, {})
                                         : chains.last_of(task.unit, task.micro_batch);
  }
  if (is_message && task.message == Message::kHiddenGradient) {
    return chains.last_of(task.unit, task.micro_batch);
  }
  const std::vector<std::int32_t>& inputs = model.units[task.unit].inputs;
  if (task.kind == OpKind::kForward) return chains.add(task.unit, task.micro_batch, inputs);
  if (task.kind != OpKind::kBackward || task.micro_batch < 0) return -1;
  if (model.fuses_passes(task.unit)) chains.add(task.unit, task.micro_batch, inputs);
  const std::int32_t forward = chains.end(task.unit, task.micro_batch);
  TERRACE_CHECK_LE(0, forward);
  return forward;
}

// Notes in each task which forward it belongs to, and which forward feeds that one.
void connect(const StepModel& model, std::vector<Task>& tasks) {
  ForwardChains chains;
  std::map<std::int32_t, std::int32_t> of_pass;  // by micro-batch: of the part before
  for (Task& task : tasks) {
    const bool goes_on = computes(task) && task.part > 0;
    task.forward = goes_on ? of_pass.at(task.micro_batch) : forward_of(model, task, chains);
    if (computes(task)) of_pass[task.micro_batch] = task.forward;
    if (task.forward < 0) continue;
    task.inputs = chains.at(task.forward).inputs;
    task.use = chains.at(task.forward).use;
  }
}

}  // namespace

std::vector<Task> schedule_step(const StepModel& model, const StepPolicy& policy,
                                const std::vector<ListedMicroBatch>& listed) {
  std::vector<Task> tasks = Scheduler(model, policy, listed).run();
  connect(model, tasks);
  return tasks;
}

std::vector<Task> schedule_step(const StepModel& model, const StepPolicy& policy) {
  return schedule_step(model, policy, every_micro_batch(policy.micro_batches));
}

std::vector<Task> add_recompute(const StepModel& model, const StepPolicy& policy,
                                std::vector<Task> tasks) {
  const auto computes_again = [&](const Task& task) {
    return task.kind == OpKind::kBackward && task.part == 0 &&
           policy.activations.at(task.unit).recompute &&
           !model.units.at(task.unit).recompute.empty();
  };
  std::vector<Task> result;
  result.reserve(tasks.size());
  for (auto task = tasks.begin(); task != tasks.end();) {
    // The first parts of a backward of several micro-batches, with nothing between them.
    auto end = task + 1;
    if (computes_again(*task) && UnitModel::parts(pass_of(model, *task)).size() > 1) {
      while (end != tasks.end() && end->unit == task->unit && computes_again(*end)) ++end;
    }
    if (computes_again(*task)) {
      std::vector<Task> again;
      for (auto one = task; one != end; ++one) {
        again.push_back(*one);
        again.back().kind = OpKind::kRecompute;
      }
      add_parts_of_all(model, again, result);
    }
    std::move(task, end, std::back_inserter(result));
    task = end;
  }
  return result;
}

const std::vector<UnitStep>& pass_of(const StepModel& model, const Task& task) {
  const UnitModel& unit = model.units.at(task.unit);
  if (task.kind == OpKind::kRecompute) return unit.recompute;
  return task.kind == OpKind::kBackward ? unit.backward : unit.forward;
}

bool computes(const Task& task) {
  return task.kind == OpKind::kForward || task.kind == OpKind::kRecompute ||
         (task.kind == OpKind::kBackward && task.micro_batch >= 0);
}

std::vector<std::vector<std::int32_t>> parameter_uses(const StepModel& model,
                                                      const std::vector<Task>& tasks) {
  std::vector<std::vector<std::int32_t>> uses(static_cast<std::size_t>(model.group_count()));
  for (std::int32_t s = 0; s < static_cast<std::int32_t>(tasks.size()); ++s) {
    const Task& task = tasks[s];
    if (!computes(task)) continue;
    visit_groups(model, task, [&](std::int32_t index) {
      uses.at(model.units[task.unit].groups.at(index)).push_back(s);
    });
  }
  return uses;
}

}  // namespace terrace
