#include "runtime/step/lowering.h"

#include <algorithm>

#include "base/check.h"

namespace terrace {
namespace {

// About how many ops and buffers, and accesses, a task becomes: room for them is taken at once.
constexpr std::size_t kOpsPerTask = 4;
constexpr std::size_t kAccessesPerTask = 16;

Draft empty_draft(Tier compute, bool has_names) {
  Draft draft;
  draft.compute_tier = compute;
  draft.has_names = has_names;
  return draft;
}

}  // namespace

Lowering::Lowering(const StepModel& model, const StepPolicy& policy, const std::vector<Task>& tasks,
                   bool has_names)
    : model_(model),
      policy_(policy),
      tasks_(tasks),
      compute_(policy.compute_tier()),
      draft_(empty_draft(compute_, has_names)),
      shared_(add_shared_buffers(draft_, model, policy)),
      parameters_(draft_, model, policy, StateClass::kParameters),
      uses_(parameter_uses(model, tasks)),
      producer_(forwards_of(tasks), -1),
      again_at_(producer_.size(), -1),
      joined_forwards_(index(policy.micro_batches), -1),
      gradient_tasks_(model.unit_count()),
      instances_(model.unit_count()),
      updated_on_host_(model.unit_count()),
      hidden_(producer_.size()),
      hidden_gradient_(hidden_.size(), kNoBuffer),
      saved_(hidden_.size()),
      gradient_(model.unit_count(), kNoBuffer),
      sum_(model.unit_count(), kNoBuffer),
      finished_at_(model.unit_count(), -1),
      updated_at_(model.unit_count(), -1) {
  draft_.ops.reserve(kOpsPerTask * tasks.size());
  draft_.accesses.reserve(kAccessesPerTask * tasks.size());
  draft_.buffers.reserve(kOpsPerTask * tasks.size());
  if (policy.has_backward) {
    for (const StateClassInfo& info : kStateClasses) {
      if (info.use != StateUse::kUpdate) continue;
      update_states_.emplace_back(draft_, model, policy, info.state);
    }
    gradients_.emplace(draft_, model, policy, StateClass::kGradients);
    for (std::int32_t u = 0; u <= model.last_unit(); ++u)
      first_partials_.push_back(model.first_partial(u));
  }
  for (std::int32_t s = 0; s < static_cast<std::int32_t>(tasks.size()); ++s) {
    note(tasks[s], s);
  }
}

void Lowering::note(const Task& task, std::int32_t number) {
  if (task.forward >= 0 && producer_.at(index(task.forward)) < 0) {
    producer_.at(index(task.forward)) = number;
  }
  if (task.forward >= 0 && (task.kind == OpKind::kRecompute || task.kind == OpKind::kBackward)) {
    std::int32_t& again = again_at_.at(index(task.forward));
    if (again < 0) again = number;
  }
  if (task.kind == OpKind::kForward && model_.joins_micro_batches(task.unit)) {
    joined_forwards_.at(index(task.micro_batch)) = task.forward;
  }
  const bool adds = task.kind == OpKind::kBackward;
  if (adds) {
    GradientTasks& of_unit = gradient_tasks_.at(task.unit);
    if (of_unit.first < 0) of_unit.first = number;
    of_unit.last = number;
  }
  const bool computes = adds || task.kind == OpKind::kForward;
  if (computes && UnitModel::writes(steps_of(task), Role::kLosses)) last_loss_ = number;
}

std::size_t Lowering::forwards_of(const std::vector<Task>& tasks) {
  std::int32_t last = -1;
  for (const Task& task : tasks) last = std::max(last, task.forward);
  return index(last + 1);
}

const std::vector<UnitStep>& Lowering::steps_of(const Task& task) const {
  const UnitModel& unit = model_.units.at(task.unit);
  if (task.kind == OpKind::kRecompute) return unit.recompute;
  return task.kind == OpKind::kBackward ? unit.backward : unit.forward;
}

Draft Lowering::run() {
  for (now_ = 0; now_ < static_cast<std::int32_t>(tasks_.size()); ++now_) {
    lower(tasks_[now_]);
  }
  return std::move(draft_);
}

void Lowering::lower(const Task& task) {
  switch (task.kind) {
    case OpKind::kInput:
      return input();
    case OpKind::kForward:
    case OpKind::kRecompute:
      return forward(task);
    case OpKind::kBackward:
      return task.micro_batch < 0 ? joined_backward(task) : backward(task);
    case OpKind::kSend:
    case OpKind::kReceive:
      return pass_message(task);
    case OpKind::kStepScalars:
      return step_scalars();
    case OpKind::kNormFinish:
      return norm_finish();
    case OpKind::kUpdate:
      return update(task);
    default:
      TERRACE_CHECK(false);
  }
}

void Lowering::input() {
  Op op{.kind = OpKind::kInput, .lane = policy_.unified ? Lane::kCompute : Lane::kUpload};
  op.writes = {as(Role::kTokens, draft_.whole(shared_.tokens))};
  op.account = Account::kWorkspace;
  if (!policy_.unified) op.cost.bytes = static_cast<double>(op.writes[0].size_bytes);
  main_op(std::move(op), Task{});
}

void Lowering::forward(const Task& task) {
  unit_pass(task, steps_of(task));
  settle_forward(task);
}

void Lowering::settle_forward(const Task& task) {
  if (task.kind == OpKind::kRecompute) return;
  if (now_ == last_loss_) losses_to_host();
  if (!needed_again(task).has_value()) return release_input(task);
  if (needs_input_again(task.unit)) {
    send_away(hidden(task.input), {BufferKind::kHiddenAway, task.unit, task.input}, task);
  }
  if (!policy_.homes.at(task.unit).recompute && UnitModel::writes(steps_of(task), Role::kSaved) &&
      model_.units.at(task.unit).saved_bytes != 0) {
    send_away(saved(task.forward), {BufferKind::kSavedAway, task.unit, task.forward}, task);
  }
}

void Lowering::release_input(const Task& task) {
  if (task.input >= 0) release_slot(hidden_slots_, hidden(task.input).memory);
}

void Lowering::add_loss_scale(Op& op) const {
  if (shared_.loss_scale == kNoBuffer) return;
  op.reads.push_back(as(Role::kLossScale, draft_.whole(shared_.loss_scale)));
}

void Lowering::losses_to_host() {
  if (policy_.unified) return;
  Mover mover = Mover::store(draft_, now_, labels(Task{}, Account::kWorkspace));
  mover.copy(draft_.whole(shared_.losses), draft_.whole(shared_.losses_host));
}

void Lowering::backward(const Task& task) {
  unit_pass(task, steps_of(task));
  settle_backward(task);
}

void Lowering::settle_backward(const Task& task) {
  release_input(task);
  release_slot(gradient_slots_, hidden_gradient(task.forward));
  if (model_.trains(task.unit)) settle_gradient(task.unit, task.micro_batch);
  if (now_ == last_loss_) losses_to_host();
}

void Lowering::joined_backward(const Task& task) {
  Op op = compute_op(task);
  op.reads.push_back(as(Role::kTokens, draft_.whole(shared_.tokens)));
  for (const std::int32_t forward : joined_forwards_) {
    op.reads.push_back(
        as(Role::kHiddenGradient, gather_rows(task, own_rows(hidden_gradient(forward)))));
  }
  const Range target = compute_gradient(task.unit);
  if (model_.has_tied_gradient()) op.reads.push_back(as(Role::kGradient, target));
  op.writes.push_back(as(Role::kGradient, target));
  op.cost.flops = model_.units.at(task.unit).backward_flops;
  main_op(std::move(op), task);
  finish_gradient(task.unit);
}

Op Lowering::compute_op(const Task& task) {
  Op op{.kind = task.kind, .lane = Lane::kCompute, .use = task.use};
  if (shared_.constants != kNoBuffer) {
    op.reads.push_back(as(Role::kConstants, draft_.whole(shared_.constants)));
  }
  if (shared_.workspace != kNoBuffer) {
    op.writes.push_back(as(Role::kWorkspace, draft_.whole(shared_.workspace)));
  }
  return op;
}

void Lowering::main_op(Op op, const Task& task) {
  op.unit = task.unit;
  op.micro_batch = task.micro_batch;
  op.chunk = task.chunk;
  op.parts = task.parts;
  op.message = task.message;
  DraftOp draft_op;
  draft_op.op = std::move(op);
  draft_op.task = now_;
  draft_.add_op(std::move(draft_op));
}

Range Lowering::tokens_of(std::int32_t micro_batch) const {
  return {shared_.tokens, model_.tokens_bytes * static_cast<std::size_t>(micro_batch),
          model_.tokens_bytes};
}

}  // namespace terrace
