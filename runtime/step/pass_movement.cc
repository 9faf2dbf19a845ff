#include "runtime/step/pass_movement.h"

#include <algorithm>
#include <span>
#include <utility>

#include "base/check.h"
#include "runtime/step/rank_exchange.h"

namespace terrace {
namespace {

// Returns the element with this number, and makes it if there is none.
template <typename T>
T& numbered(std::vector<T>& list, std::int32_t number) {
  const auto n = static_cast<std::size_t>(number);
  if (list.size() <= n) list.resize(n + 1);
  return list[n];
}

// Returns the steps of a pass that a task is.
std::span<const UnitStep> steps_of(const StepModel& model, const Task& task) {
  const std::span<const UnitStep> pass = pass_of(model, task);
  return pass.subspan(static_cast<std::size_t>(task.steps.begin),
                      static_cast<std::size_t>(task.steps.end - task.steps.begin));
}

bool reads(std::span<const UnitStep> steps, Role role) {
  return std::ranges::any_of(steps, [role](const UnitStep& step) {
    return std::ranges::find(step.reads, role, &UnitAccess::role) != step.reads.end();
  });
}

bool writes(std::span<const UnitStep> steps, Role role) {
  return std::ranges::any_of(steps, [role](const UnitStep& step) {
    return std::ranges::find(step.writes, role, &UnitAccess::role) != step.writes.end();
  });
}

}  // namespace

PassMovement::PassMovement(MovementState& state, ParameterMovement& parameters,
                           ActivationMovement& activations, GradientMovement* gradients)
    : state_(state), parameters_(parameters), activations_(activations), gradients_(gradients) {
  for (std::int32_t t = 0; t < static_cast<std::int32_t>(state.tasks.size()); ++t) {
    const Task& task = state.tasks[t];
    const bool is_first_time = computes(task) && task.kind != OpKind::kRecompute;
    if (!is_first_time) continue;
    if (writes(steps_of(state.model, task), Role::kLosses)) last_loss_ = t;
    const std::span<const UnitStep> steps = steps_of(state.model, task);
    if (writes(steps, Role::kRouterSums) || reads(steps, Role::kAllRouterSums)) {
      last_router_sums_ = t;
    }
  }
}

void PassMovement::Operands::clear() {
  ranges.fill({});
  between.clear();
  inputs.clear();
  input_gradients.clear();
  parameters.clear();
  gradients.clear();
}

void PassMovement::add_part(const Task& task) {
  const bool is_whole =
      task.steps.begin == 0 && task.steps.end == std::ssize(pass_of(state_.model, task));
  operands_ = &passes_[is_whole ? -1 : task.micro_batch];
  if (task.part == 0) operands_->clear();
  find_operands(task);
  std::int32_t number = task.steps.begin;
  for (const UnitStep& step : steps_of(state_.model, task)) {
    const bool computes = step.kind == UnitStep::Kind::kCompute;
    computes ? add_compute(task, step, number) : add_exchange(task, step);
    ++number;
  }
  settle(task);
}

// Asks for whatever must be fetched in one fixed order, whatever the steps are, because loads are
// issued in that order.
void PassMovement::find_operands(const Task& task) {
  find_parameters(task);
  for (const Role role : {Role::kTokens, Role::kHidden, Role::kHiddenOut, Role::kSaved,
                          Role::kLosses, Role::kHiddenGradient, Role::kHiddenGradientOut,
                          Role::kGradient, Role::kRouterSums, Role::kAllRouterSums}) {
    for (const UnitStep& step : steps_of(state_.model, task)) {
      for (const auto* list : {&step.reads, &step.writes}) {
        for (const UnitAccess& access : *list) {
          if (access.role == role) find(task, access, list == &step.writes);
        }
      }
    }
  }
}

void PassMovement::find_parameters(const Task& task) {
  const UnitModel& unit = state_.model.units.at(task.unit);
  visit_groups(state_.model, task, [&](std::int32_t index) {
    const std::int32_t group = unit.groups.at(index);
    if (!state_.model.has_parameters(group)) return;
    numbered(operands_->parameters, index) = parameters_.for_task(group);
  });
}

void PassMovement::find(const Task& task, const UnitAccess& access, bool writes) {
  const StepModel& model = state_.model;
  const UnitModel& unit = model.units.at(task.unit);
  const auto micro_batch = static_cast<std::size_t>(task.micro_batch);
  const auto is_new = [](const Range& range) { return range.buffer == kNoBuffer; };
  Range& range = operands_->of(access.role);
  switch (access.role) {
    case Role::kTokens:
      range = {state_.shared.tokens, model.tokens_bytes * micro_batch, model.tokens_bytes};
      return;
    case Role::kLosses:
      range = {state_.shared.losses, sizeof(double) * micro_batch, sizeof(double)};
      return;
    case Role::kRouterSums:
      range = router_sums(task);
      return;
    case Role::kAllRouterSums:
      range = state_.router_sums_of(task.micro_batch, 0, state_.model.router_layers());
      return;
    case Role::kHidden:
      numbered(operands_->inputs, access.number) = activations_.input(task, access.number);
      return;
    case Role::kHiddenOut:
      if (writes && is_new(range)) range = activations_.output(task);
      return;
    case Role::kSaved: {
      if (unit.saved_bytes == 0 || !is_new(range)) return;
      // A head's saved activations pass between the steps of one pass alone.
      const bool is_kept = task.kind == OpKind::kBackward && !unit.fuses_passes();
      range = activations_.saved(task, !is_kept);
      if (unit.fuses_passes()) range.size_bytes = unit.saved_bytes;
      return;
    }
    case Role::kHiddenGradient:
      if (!writes) range = activations_.output_gradient(task.forward);
      return;
    case Role::kHiddenGradientOut: {
      Gradient& gradient = numbered(operands_->input_gradients, access.number);
      if (!writes || !is_new(gradient.range)) return;
      const auto target = activations_.input_gradient(task, access.number);
      gradient = {target.range, target.adds};
      return;
    }
    case Role::kGradient: {
      Gradient& gradient = numbered(operands_->gradients, access.number);
      if (!writes || !is_new(gradient.range)) return;
      const auto target = gradients_->target(task, unit.groups.at(access.number));
      gradient = {target.range, target.adds};
      return;
    }
    default:
      TERRACE_CHECK(false);
  }
}

// Returns the sums of the unit's own router.
Range PassMovement::router_sums(const Task& task) const {
  const std::int32_t layer = state_.model.router_layers_before(task.unit);
  return state_.router_sums_of(task.micro_batch, layer, layer + 1);
}

void PassMovement::pass_router_sums(const Task& task) {
  const std::int32_t before = state_.model.router_layers_before(task.unit + 1);
  const Range range =
      task.message == Message::kRouterSums
          ? state_.router_sums_of(task.micro_batch, 0, before)
          : state_.router_sums_of(task.micro_batch, before, state_.model.router_layers());
  Op op = message_op(task, range, Account::kWorkspace);
  if (task.kind == OpKind::kSend) op.cost.bytes = static_cast<double>(range.size_bytes);
  state_.add_main(std::move(op), task);
}

// Returns whether the step has the buffer of an access.
bool PassMovement::has_buffer(const Task& task, const UnitAccess& access) const {
  if (access.role == Role::kSaved) return state_.model.units.at(task.unit).saved_bytes != 0;
  const bool is_of_router = access.role == Role::kRouterSums || access.role == Role::kAllRouterSums;
  return !is_of_router || state_.shared.router_sums != kNoBuffer;
}

Range PassMovement::between(const Task& task, const UnitAccess& access) {
  Range& range = numbered(operands_->between, access.number);
  if (range.buffer == kNoBuffer) {
    const BetweenBuffer& buffer = state_.model.units.at(task.unit).between.at(access.number);
    Draft& draft = state_.draft;
    const BufferId made = draft.add_buffer(
        draft.name("{}[{}] mb {}", buffer.name, task.unit, task.micro_batch), buffer.size_bytes,
        state_.compute, Account::kActivations, Life::kTransient);
    range = {made, 0, buffer.size_bytes};
  }
  return range;
}

Access PassMovement::found(const Task& task, const UnitAccess& access) {
  Range range;
  switch (access.role) {
    case Role::kBetween:
      range = between(task, access);
      break;
    case Role::kHidden:
      range = operands_->inputs.at(access.number);
      break;
    case Role::kHiddenGradientOut:
      range = operands_->input_gradients.at(access.number).range;
      break;
    case Role::kGradient:
      range = operands_->gradients.at(access.number).range;
      break;
    default:
      range = operands_->of(access.role);
  }
  Access result = as(access.role, range);
  result.number = access.number;
  return result;
}

bool PassMovement::adds(const UnitAccess& access) const {
  if (access.role == Role::kGradient) return operands_->gradients.at(access.number).adds;
  return access.role == Role::kHiddenGradientOut &&
         operands_->input_gradients.at(access.number).adds;
}

void PassMovement::add_compute(const Task& task, const UnitStep& step, std::int32_t number) {
  Op op = state_.compute_op(task);
  op.step = number;
  op.phase = step.name;
  op.cost.flops = step.flops;
  for (const std::int32_t index : step.groups) {
    if (index >= std::ssize(operands_->parameters)) continue;
    const Range& parameters = operands_->parameters[index];
    if (parameters.buffer == kNoBuffer) continue;
    op.reads.push_back(as(Role::kParameters, parameters));
    op.reads.back().number = index;
  }
  for (const UnitAccess& read : step.reads) {
    if (read.role == Role::kLossScale) {
      state_.add_loss_scale(op);
    } else if (has_buffer(task, read)) {
      op.reads.push_back(found(task, read));
    }
  }
  for (const UnitAccess& write : step.writes) {
    if (!has_buffer(task, write)) continue;
    const Access target = found(task, write);
    if (adds(write)) op.reads.push_back(target);
    op.writes.push_back(target);
  }
  state_.add_main(std::move(op), task);
}

void PassMovement::add_exchange(const Task& task, const UnitStep& step) {
  const auto range = [&](const UnitAccess& access) {
    const Access all = found(task, access);
    const Range whole{all.buffer, all.offset, all.size_bytes};
    if (access.role == Role::kBetween || access.size_bytes == 0) return whole;
    return Range{whole.buffer, whole.offset + access.offset, access.size_bytes};
  };
  const Range source = range(step.reads.front());
  const Range target = range(step.writes.front());
  const bool in_place = step.reads.front() == step.writes.front();
  const OpKind kind = step.kind == UnitStep::Kind::kGather ? OpKind::kAllGather
                      : in_place                           ? OpKind::kAllReduce
                                                           : OpKind::kReduceScatter;
  state_.add_main(tensor_op(state_.model, kind, source, target), task);
}

void PassMovement::settle(const Task& task) {
  const bool ends_pass = task.steps.end == std::ssize(pass_of(state_.model, task));
  const bool has_last_loss = state_.now == last_loss_;
  if (task.kind == OpKind::kBackward) {
    if (ends_pass) activations_.settle_backward(task);
    settle_gradients(task);
    if (has_last_loss) losses_to_host();
    if (state_.now == last_router_sums_) router_sums_to_host();
  } else {
    if (has_last_loss) losses_to_host();
    if (state_.now == last_router_sums_) router_sums_to_host();
    if (ends_pass) activations_.settle_forward(task);
  }
}

// Settles the gradients that the part has written. No other part of the pass writes them.
void PassMovement::settle_gradients(const Task& task) {
  std::vector<std::int32_t> written;
  for (const UnitStep& step : steps_of(state_.model, task)) {
    for (const UnitAccess& write : step.writes) {
      if (write.role == Role::kGradient) written.push_back(write.number);
    }
  }
  std::ranges::sort(written);
  const auto repeated = std::ranges::unique(written);
  written.erase(repeated.begin(), repeated.end());
  const UnitModel& unit = state_.model.units.at(task.unit);
  for (const std::int32_t index : written) {
    const std::int32_t group = unit.groups.at(index);
    if (state_.model.owns(group)) gradients_->settle(group, task.micro_batch);
  }
}

void PassMovement::losses_to_host() {
  if (state_.policy.unified) return;
  Mover mover = state_.store(MovementState::labels(Task{}, Account::kWorkspace));
  mover.copy(state_.whole(state_.shared.losses), state_.whole(state_.shared.losses_host));
}

void PassMovement::router_sums_to_host() {
  const SharedBuffers& shared = state_.shared;
  if (shared.router_sums_host == shared.router_sums) return;
  Mover mover = state_.store(MovementState::labels(Task{}, Account::kWorkspace));
  mover.copy(state_.whole(shared.router_sums), state_.whole(shared.router_sums_host));
}

// Returns the groups of a joined backward whose gradient it finishes, by their index in the unit.
std::vector<std::int32_t> PassMovement::finished_groups(const Task& task) const {
  const StepModel& model = state_.model;
  const UnitModel& unit = model.units.at(task.unit);
  std::vector<std::int32_t> finished;
  for (std::int32_t index = 0; index < std::ssize(unit.groups); ++index) {
    const std::int32_t group = unit.groups[index];
    if (model.owner(group) == task.unit && model.group_trains(group)) finished.push_back(index);
  }
  return finished;
}

// Tensor-parallel ranks do not measure the first micro-batch, so its rows need not be gathered.
void PassMovement::add_first_backward(const Task& task) {
  const UnitModel& unit = state_.model.units.at(task.unit);
  Op op = state_.compute_op(task);
  op.kind = OpKind::kFirstBackward;
  op.reads.push_back(as(Role::kTokens, state_.whole(state_.shared.tokens)));
  Range hidden = activations_.output_gradient(activations_.forwards_of(task.unit).front());
  hidden.size_bytes = state_.model.hidden_bytes;
  op.reads.push_back(as(Role::kHiddenGradient, hidden));
  for (const std::int32_t index : finished_groups(task)) {
    const GradientMovement::Target target = gradients_->first_target(unit.groups[index]);
    Access access = as(Role::kGradient, target.range);
    access.number = index;
    if (target.adds) op.reads.push_back(access);
    op.writes.push_back(access);
  }
  op.cost.flops = unit.backward_flops / state_.policy.micro_batches;
  state_.add_main(std::move(op), task);
  for (const std::int32_t index : finished_groups(task)) {
    gradients_->settle_first(unit.groups[index]);
  }
}

void PassMovement::add_joined_backward(const Task& task) {
  const StepModel& model = state_.model;
  const UnitModel& unit = model.units.at(task.unit);
  if (measures_first_micro_batch(model)) add_first_backward(task);
  Op op = state_.compute_op(task);
  op.reads.push_back(as(Role::kTokens, state_.whole(state_.shared.tokens)));
  for (const std::int32_t forward : activations_.forwards_of(task.unit)) {
    Range own = activations_.output_gradient(forward);
    own.size_bytes = model.hidden_bytes;
    op.reads.push_back(as(Role::kHiddenGradient, gather_rows(task, own)));
  }
  const std::vector<std::int32_t> finished = finished_groups(task);
  for (const std::int32_t index : finished) {
    const GradientMovement::Target target = gradients_->target(task, unit.groups[index]);
    Access access = as(Role::kGradient, target.range);
    access.number = index;
    if (target.adds) op.reads.push_back(access);
    op.writes.push_back(access);
  }
  op.cost.flops = unit.backward_flops;
  state_.add_main(std::move(op), task);
  for (const std::int32_t index : finished) gradients_->settle(unit.groups[index], -1);
}

Range PassMovement::gather_rows(const Task& task, const Range& own) {
  const TensorSharing& tensor = state_.model.tensor;
  if (!tensor.shares_rows) return own;
  Draft& draft = state_.draft;
  const BufferId all =
      draft.add_buffer(draft.name("gathered[{}] mb {}", task.unit, task.micro_batch),
                       tensor.rows_bytes, state_.compute, Account::kActivations, Life::kTransient);
  const Range rows{all, 0, tensor.rows_bytes};
  state_.add_main(tensor_op(state_.model, OpKind::kAllGather, own, rows), task);
  return rows;
}

}  // namespace terrace
