#include <algorithm>
#include <array>

#include "base/check.h"
#include "runtime/step/lowering.h"

// A unit's pass: an op for each of its steps, on the buffers that these touch.
namespace terrace {

// The buffers of a pass by role, and those between its steps by number.
struct Lowering::Operands {
  std::array<Range, kRoleCount> ranges{};
  std::vector<Range> between;
  bool adds_gradient = false;  // to the gradient that is there, instead of replacing it
  bool adds_tied_gradient = false;

  Range& of(Role role) { return ranges.at(static_cast<std::size_t>(role)); }
};

void Lowering::unit_pass(const Task& task, const std::vector<UnitStep>& steps) {
  Operands operands = operands_of(task, steps);
  for (std::size_t s = 0; s < steps.size(); ++s) {
    step_of_unit_ = static_cast<std::int32_t>(s);
    const bool computes = steps[s].kind == UnitStep::Kind::kCompute;
    computes ? compute_step(task, steps[s], operands) : exchange_step(task, steps[s], operands);
  }
}

// Asks for whatever must be fetched in one fixed order, whatever the steps are, because loads are
// issued in that order.
Lowering::Operands Lowering::operands_of(const Task& task, const std::vector<UnitStep>& steps) {
  Operands operands;
  operands.between.resize(model_.units.at(task.unit).between.size());
  if (model_.has_parameters(task.unit)) {
    operands.of(Role::kParameters) = parameters_for(task.unit);
  }
  if (UnitModel::reads(steps, Role::kTiedParameters)) {
    operands.of(Role::kTiedParameters) = parameters_for(0);
  }
  if (UnitModel::reads(steps, Role::kTokens))
    operands.of(Role::kTokens) = tokens_of(task.micro_batch);
  add_activations(task, steps, operands);
  if (UnitModel::writes(steps, Role::kLosses)) {
    operands.of(Role::kLosses) = {shared_.losses,
                                  sizeof(double) * static_cast<std::size_t>(task.micro_batch),
                                  sizeof(double)};
  }
  if (policy_.has_backward) add_gradients(task, steps, operands);
  return operands;
}

void Lowering::add_activations(const Task& task, const std::vector<UnitStep>& steps,
                               Operands& operands) {
  if (UnitModel::reads(steps, Role::kHidden)) {
    operands.of(Role::kHidden) = brought_back(hidden(task.input), task);
  }
  if (UnitModel::writes(steps, Role::kHiddenOut)) {
    BufferId& out = hidden(task.forward).memory;
    out = hidden_buffer("hidden", task.forward);
    operands.of(Role::kHiddenOut) = draft_.whole(out);
  }
  const bool has_saved = model_.units.at(task.unit).saved_bytes != 0;
  if (!has_saved ||
      !(UnitModel::reads(steps, Role::kSaved) || UnitModel::writes(steps, Role::kSaved)))
    return;
  Activation& kept = saved(task.forward);
  const bool is_fused = model_.fuses_passes(task.unit);
  if (task.kind == OpKind::kBackward && !is_fused) {
    operands.of(Role::kSaved) = brought_back(kept, task);
  } else {
    kept.memory = saved_buffer(task);
    operands.of(Role::kSaved) = draft_.whole(kept.memory);
    if (is_fused) {  // it passes between the steps of one op alone
      operands.of(Role::kSaved).size_bytes = model_.units.at(task.unit).saved_bytes;
    }
  }
}

void Lowering::add_gradients(const Task& task, const std::vector<UnitStep>& steps,
                             Operands& operands) {
  if (UnitModel::reads(steps, Role::kHiddenGradient)) {
    operands.of(Role::kHiddenGradient) = draft_.whole(hidden_gradient(task.forward));
  }
  if (UnitModel::writes(steps, Role::kHiddenGradientOut)) {
    BufferId& out = hidden_gradient(task.input);
    out = hidden_buffer("hidden grad", task.input);
    operands.of(Role::kHiddenGradientOut) = draft_.whole(out);
  }
  const auto target = [&](Role role, std::int32_t unit, bool& adds) {
    if (!UnitModel::writes(steps, role)) return;
    const bool sums_elsewhere = sums_on_host(unit) || sums_shards(unit);
    if (sums_elsewhere) gradient_.at(unit) = kNoBuffer;
    operands.of(role) = compute_gradient(unit);
    adds = !begins_gradient(task.unit) && !sums_elsewhere;
  };
  target(Role::kGradient, task.unit, operands.adds_gradient);
  target(Role::kTiedGradient, 0, operands.adds_tied_gradient);
}

Range Lowering::between(const Task& task, const UnitAccess& access, Operands& operands) {
  Range& range = operands.between.at(static_cast<std::size_t>(access.number));
  if (range.buffer == kNoBuffer) {
    const BetweenBuffer& buffer =
        model_.units.at(task.unit).between.at(static_cast<std::size_t>(access.number));
    const BufferId made =
        draft_.add_buffer(draft_.name("{}[{}] mb {}", buffer.name, task.unit, task.micro_batch),
                          buffer.size_bytes, compute_, Account::kActivations, Life::kTransient);
    range = {made, 0, buffer.size_bytes};
  }
  return range;
}

void Lowering::compute_step(const Task& task, const UnitStep& step, Operands& operands) {
  Op op = compute_op(task);
  op.step = step_of_unit_;
  op.phase = step.name;
  op.cost.flops = step.flops;
  const Range& parameters = operands.of(Role::kParameters);
  if (parameters.buffer != kNoBuffer) op.reads.push_back(as(Role::kParameters, parameters));
  const auto access = [&](const UnitAccess& wanted) {
    const bool is_between = wanted.role == Role::kBetween;
    Access found =
        as(wanted.role, is_between ? between(task, wanted, operands) : operands.of(wanted.role));
    found.number = wanted.number;
    return found;
  };
  for (const UnitAccess& read : step.reads) {
    if (read.role == Role::kLossScale) {
      add_loss_scale(op);
    } else if (read.role != Role::kSaved || model_.units.at(task.unit).saved_bytes != 0) {
      op.reads.push_back(access(read));
    }
  }
  for (const UnitAccess& write : step.writes) {
    if (write.role == Role::kSaved && model_.units.at(task.unit).saved_bytes == 0) continue;
    const Access target = access(write);
    const bool adds = (write.role == Role::kGradient && operands.adds_gradient) ||
                      (write.role == Role::kTiedGradient && operands.adds_tied_gradient);
    if (adds) op.reads.push_back(target);
    op.writes.push_back(target);
  }
  main_op(std::move(op), task);
}

void Lowering::exchange_step(const Task& task, const UnitStep& step, Operands& operands) {
  const auto range = [&](const UnitAccess& access) {
    if (access.role == Role::kBetween) return between(task, access, operands);
    const Range whole = operands.of(access.role);
    if (access.size_bytes == 0) return whole;
    return Range{whole.buffer, whole.offset + access.offset, access.size_bytes};
  };
  const Range source = range(step.reads.front());
  const Range target = range(step.writes.front());
  const bool in_place = step.reads.front() == step.writes.front();
  const OpKind kind = step.kind == UnitStep::Kind::kGather ? OpKind::kAllGather
                      : in_place                           ? OpKind::kAllReduce
                                                           : OpKind::kReduceScatter;
  tensor_op(kind, task, source, target);
}

}  // namespace terrace
