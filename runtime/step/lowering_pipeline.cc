#include <algorithm>

#include "runtime/step/lowering.h"

// The messages between pipeline stages. Those of one direction are on one lane at either end, in
// order. A message that the next stage is not ready for holds up the lane, but not the compute.
namespace terrace {

// Keeps one slot free, so that a receive need not wait for the use right before its own.
BufferId Lowering::take_slot(Slots& slots) {
  if (slots.free.size() < 2) {
    slots.all.push_back(
        draft_.add_buffer({.name = draft_.name("{} {}", slots.name, slots.all.size()),
                           .key = {.kind = slots.kind, .number = std::ssize(slots.all)},
                           .size_bytes = model_.hidden_bytes,
                           .tier = compute_,
                           .account = Account::kActivations,
                           .life = Life::kPersistent}));
    return slots.all.back();
  }
  const BufferId slot = slots.free.front();
  slots.free.erase(slots.free.begin());
  return slot;
}

void Lowering::release_slot(Slots& slots, BufferId buffer) {
  if (std::find(slots.all.begin(), slots.all.end(), buffer) == slots.all.end()) return;
  slots.free.push_back(buffer);
}

// An updated parameter is sent right after its update (send_updated()), not by a task of its own.
void Lowering::pass_message(const Task& task) {
  switch (task.message) {
    case Message::kHidden:
    case Message::kHiddenGradient:
      return pass_hidden(task);
    case Message::kTiedGradient:
      return pass_tied_gradient(task);
    case Message::kUpdated:
      TERRACE_CHECK(task.kind == OpKind::kReceive);
      return receive_updated(task);
    case Message::kNone:
      break;
  }
  TERRACE_CHECK(false);
}

// Only a send says how many bytes pass.
Op Lowering::message_op(const Task& task, const Range& range, Account account) {
  Op op{.kind = task.kind,
        .message = task.message,
        .lane = lane_of(task.kind, task.message),
        .account = account};
  if (task.kind == OpKind::kSend) {
    op.reads = {as(Role::kSource, range)};
    op.cost.bytes = static_cast<double>(range.size_bytes);
  } else {
    op.writes = {as(Role::kTarget, range)};
  }
  return op;
}

void Lowering::pass_hidden(const Task& task) {
  const bool is_gradient = task.message == Message::kHiddenGradient;
  BufferId& buffer = is_gradient ? hidden_gradient(task.forward) : hidden(task.forward).memory;
  if (task.kind == OpKind::kReceive) {
    buffer = take_slot(is_gradient ? gradient_slots_ : hidden_slots_);
  }
  Op op = message_op(task, draft_.whole(buffer), Account::kActivations);
  if (task.kind == OpKind::kSend) op.cost.bytes = static_cast<double>(model_.hidden_bytes);
  main_op(std::move(op), task);
}

// Passes the head's gradient of the tied embedding from the last stage to the first. It does not
// have the embedding's own rows yet, and is not yet added over data-parallel ranks.
void Lowering::pass_tied_gradient(const Task& task) {
  const Range part = compute_gradient_chunk(task.unit, task.chunk);
  main_op(message_op(task, part, Account::kGradients), task);
}

void Lowering::send_updated(const Task& task, const Range& own) {
  Mover mover = Mover::store(draft_, now_, labels(task, Account::kParameters));
  const Range source =
      model_.updates_meet_on_host ? mover.bring(own, Tier::kHost, task.chunk) : own;
  const Task sends{.kind = OpKind::kSend, .message = Message::kUpdated};
  Op op = message_op(sends, source, Account::kParameters);
  op.chunk = task.chunk;
  mover.add(std::move(op));
}

void Lowering::receive_updated(const Task& task) {
  UpdatedParameter parameter;
  parameter.home = parameters_.chunk(task.unit, task.chunk);
  const Tier tier = draft_.tier_of(parameter.home);
  parameter.is_divided = model_.zero.of_optimizer() && !parameters_.is_sharded(task.unit);
  parameter.gathers_at_home = parameter.is_divided && tier != Tier::kNvme;
  if (parameter.gathers_at_home) parameter.home = own_shard(parameter.home);
  parameter.updated = parameter.home;
  if (tier == Tier::kNvme || (tier == Tier::kDevice && model_.updates_meet_on_host)) {
    const BufferId arrived = draft_.add_buffer(
        draft_.name("param[{}].{} received", task.unit, task.chunk), parameter.home.size_bytes,
        Tier::kHost, Account::kStaging, Life::kTransient);
    parameter.updated = {arrived, 0, parameter.home.size_bytes};
  }
  const bool has_others = parameter.is_divided && !parameter.gathers_at_home;
  parameter.own = has_others ? own_shard(parameter.updated) : parameter.updated;
  main_op(message_op(task, parameter.own, Account::kParameters), task);
  settle_parameter(task, parameter);
  updated_at_.at(task.unit) = now_;
}

}  // namespace terrace
