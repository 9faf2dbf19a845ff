#include <algorithm>

#include "runtime/step/lowering.h"

// What passes between pipeline stages. Messages of one direction are on one lane at either end, in
// order; a message that the next stage is not ready for holds up the lane, not the compute.
namespace terrace {

// One stays free, so that a receive need not wait for the use right before its own.
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

// What is sent of an updated parameter goes with its update.
void Lowering::pass_message(const Stage& stage) {
  switch (stage.message) {
    case Message::kHidden:
    case Message::kHiddenGradient:
      return pass_hidden(stage);
    case Message::kTiedGradient:
      return pass_tied_gradient(stage);
    case Message::kUpdated:
      TERRACE_CHECK(stage.kind == OpKind::kReceive);
      return receive_updated(stage);
    case Message::kNone:
      break;
  }
  TERRACE_CHECK(false);
}

// Only a send says how many bytes pass.
Op Lowering::message_op(const Stage& stage, const Range& range, Account account) {
  Op op{.kind = stage.kind,
        .message = stage.message,
        .lane = lane_of(stage.kind, stage.message),
        .account = account};
  if (stage.kind == OpKind::kSend) {
    op.reads = {as(Role::kSource, range)};
    op.cost.bytes = static_cast<double>(range.size_bytes);
  } else {
    op.writes = {as(Role::kTarget, range)};
  }
  return op;
}

void Lowering::pass_hidden(const Stage& stage) {
  const bool is_gradient = stage.message == Message::kHiddenGradient;
  BufferId& buffer = is_gradient ? hidden_gradient(stage.unit, stage.micro_batch)
                                 : hidden(stage.unit, stage.micro_batch).memory;
  if (stage.kind == OpKind::kReceive) {
    buffer = take_slot(is_gradient ? gradient_slots_ : hidden_slots_);
  }
  Op op = message_op(stage, draft_.whole(buffer), Account::kActivations);
  if (stage.kind == OpKind::kSend) op.cost.bytes = static_cast<double>(model_.hidden_bytes);
  main_op(std::move(op), stage);
}

// Complete but for the embedding's rows, and not yet added over data-parallel ranks. From the last
// stage on to the first.
void Lowering::pass_tied_gradient(const Stage& stage) {
  const Range part = compute_gradient_chunk(stage.unit, stage.chunk);
  main_op(message_op(stage, part, Account::kGradients), stage);
}

void Lowering::send_updated(const Stage& stage, const Range& own) {
  Mover mover = Mover::store(draft_, stage_, labels(stage, Account::kParameters));
  const Range source =
      model_.updates_meet_on_host ? mover.bring(own, Tier::kHost, stage.chunk) : own;
  const Stage sends{.kind = OpKind::kSend, .message = Message::kUpdated};
  Op op = message_op(sends, source, Account::kParameters);
  op.chunk = stage.chunk;
  mover.add(std::move(op));
}

void Lowering::receive_updated(const Stage& stage) {
  UpdatedParameter parameter;
  parameter.home = parameters_.chunk(stage.unit, stage.chunk);
  const Tier tier = draft_.tier_of(parameter.home);
  parameter.is_divided = model_.zero.of_optimizer() && !parameters_.is_sharded(stage.unit);
  parameter.gathers_at_home = parameter.is_divided && tier != Tier::kNvme;
  if (parameter.gathers_at_home) parameter.home = own_shard(parameter.home);
  parameter.updated = parameter.home;
  if (tier == Tier::kNvme || (tier == Tier::kDevice && model_.updates_meet_on_host)) {
    const BufferId arrived = draft_.add_buffer(
        draft_.name("param[{}].{} received", stage.unit, stage.chunk), parameter.home.size_bytes,
        Tier::kHost, Account::kStaging, Life::kTransient);
    parameter.updated = {arrived, 0, parameter.home.size_bytes};
  }
  const bool has_others = parameter.is_divided && !parameter.gathers_at_home;
  parameter.own = has_others ? own_shard(parameter.updated) : parameter.updated;
  main_op(message_op(stage, parameter.own, Account::kParameters), stage);
  settle_parameter(stage, parameter);
  updated_at_.at(stage.unit) = stage_;
}

}  // namespace terrace
