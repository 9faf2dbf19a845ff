#include "runtime/step/activation_movement.h"

#include <algorithm>
#include <utility>

#include "runtime/step/rank_exchange.h"

namespace terrace {

ActivationMovement::ActivationMovement(MovementState& state) : state_(state) {
  std::int32_t last = -1;
  for (const Task& task : state.tasks) last = std::max(last, task.forward);
  forwards_.resize(static_cast<std::size_t>(last + 1));
  for (std::int32_t t = 0; t < static_cast<std::int32_t>(state.tasks.size()); ++t) {
    note(state.tasks[t], t);
  }
}

void ActivationMovement::note(const Task& task, std::int32_t number) {
  if (task.forward < 0) return;
  Forward& forward = at(task.forward);
  if (forward.producer < 0) forward.producer = number;
  const bool is_again = task.kind == OpKind::kRecompute || task.kind == OpKind::kBackward;
  if (is_again && forward.again_at < 0) forward.again_at = number;
  if (!computes(task)) return;
  const std::vector<UnitStep>& pass = pass_of(state_.model, task);
  for (std::int32_t s = task.steps.begin; s < task.steps.end; ++s) {
    for (const UnitAccess& read : pass[s].reads) {
      if (read.role != Role::kHidden) continue;
      std::vector<std::int32_t>& readers = at(task.inputs.at(read.number)).readers;
      if (readers.empty() || readers.back() != number) readers.push_back(number);
    }
  }
}

BufferId ActivationMovement::hidden_buffer(const char* what, std::int32_t forward) {
  const Task& producer = state_.tasks.at(at(forward).producer);
  return state_.draft.add_buffer(
      state_.draft.name("{}[{}] mb {}", what, producer.unit, producer.micro_batch),
      state_.model.hidden_bytes, state_.compute, Account::kActivations, Life::kTransient);
}

Range ActivationMovement::input(const Task& task, std::int32_t index) {
  return brought_back(at(task.inputs.at(index)).hidden, task);
}

Range ActivationMovement::output(const Task& task) {
  BufferId& out = at(task.forward).hidden.memory;
  out = hidden_buffer("hidden", task.forward);
  return state_.whole(out);
}

Range ActivationMovement::saved(const Task& task, bool writes) {
  Activation& kept = at(task.forward).saved;
  if (!writes) return brought_back(kept, task);
  kept.memory =
      state_.draft.add_buffer(state_.draft.name("saved[{}] mb {}", task.unit, task.micro_batch),
                              state_.model.units.at(task.unit).saved_bytes, state_.compute,
                              Account::kActivations, Life::kTransient);
  return state_.whole(kept.memory);
}

ActivationMovement::InputGradient ActivationMovement::input_gradient(const Task& task,
                                                                     std::int32_t index) {
  const std::int32_t forward = task.inputs.at(index);
  BufferId& gradient = at(forward).hidden_gradient;
  const bool adds = gradient != kNoBuffer;
  if (!adds) gradient = hidden_buffer("hidden grad", forward);
  if (!adds && lasts_for_all(forward)) keep_all_of(forward);
  return {output_gradient(forward), adds};
}

bool ActivationMovement::lasts_for_all(std::int32_t forward) const {
  const Task& producer = state_.tasks.at(at(forward).producer);
  return producer.times > 1 && state_.model.joins_micro_batches(producer.unit) &&
         state_.model.trains(producer.unit);
}

void ActivationMovement::keep_all_of(std::int32_t forward) {
  const BufferId gradient = at(forward).hidden_gradient;
  std::size_t& bytes = state_.draft.buffers.at(gradient).size_bytes;
  state_.draft.strides.push_back({gradient, bytes, true});
  bytes *= static_cast<std::size_t>(state_.tasks.at(at(forward).producer).times);
}

Range ActivationMovement::output_gradient(std::int32_t forward) const {
  Range gradient = state_.whole(at(forward).hidden_gradient);
  if (lasts_for_all(forward)) {
    gradient.size_bytes /= static_cast<std::size_t>(state_.tasks.at(at(forward).producer).times);
  }
  return gradient;
}

std::vector<std::int32_t> ActivationMovement::forwards_of(std::int32_t unit) const {
  std::vector<std::int32_t> forwards(static_cast<std::size_t>(state_.policy.micro_batches), -1);
  for (const Task& task : state_.tasks) {
    if (task.kind != OpKind::kForward || task.unit != unit) continue;
    forwards.at(static_cast<std::size_t>(task.micro_batch)) = task.forward;
  }
  std::erase(forwards, -1);  // of micro-batches that are not listed
  return forwards;
}

std::optional<std::int32_t> ActivationMovement::next_reader(std::int32_t forward) const {
  const std::vector<std::int32_t>& readers = at(forward).readers;
  const auto next = std::ranges::upper_bound(readers, state_.now);
  return next == readers.end() ? std::nullopt : std::optional(*next);
}

void ActivationMovement::settle_forward(const Task& task) {
  if (task.kind == OpKind::kRecompute) return;
  for (const std::int32_t input : task.inputs) {
    const std::optional<std::int32_t> next = next_reader(input);
    if (!next.has_value()) {
      release_hidden(input);
    } else {
      send_away(at(input).hidden, {BufferKind::kHiddenAway, task.unit, input}, task, *next);
    }
  }
  Forward& forward = at(task.forward);
  const bool is_recomputed = state_.policy.activations.at(task.unit).recompute;
  if (is_recomputed || forward.again_at < 0 || forward.saved.memory == kNoBuffer) return;
  send_away(forward.saved, {BufferKind::kSavedAway, task.unit, task.forward}, task,
            forward.again_at);
}

void ActivationMovement::settle_backward(const Task& task) {
  for (const std::int32_t input : task.inputs) {
    if (!next_reader(input).has_value()) release_hidden(input);
  }
  release_slot(gradient_slots_, at(task.forward).hidden_gradient);
}

void ActivationMovement::send_away(Activation& activation, const BufferKey& key, const Task& task,
                                   std::int32_t needed_at) {
  const UnitActivations& policy = state_.policy.activations.at(task.unit);
  const Tier home = state_.home_tier(policy.home);
  const std::int32_t short_gap = policy.is_named ? 0 : kShortGap;
  if (home == state_.compute || needed_at - state_.now <= short_gap) return;
  Draft& draft = state_.draft;
  const Buffer memory = draft.buffers.at(activation.memory);
  const BufferId away =
      draft.add_buffer({.name = draft.name("{} away", memory.name),
                        .key = key,
                        .size_bytes = memory.size_bytes,
                        .tier = home,
                        .account = Account::kActivations,
                        .life = home == Tier::kNvme ? Life::kPersistent : Life::kTransient});
  Mover mover = state_.store(MovementState::labels(task, Account::kActivations));
  mover.copy(draft.whole(activation.memory), draft.whole(away));
  release_slot(hidden_slots_, activation.memory);
  activation = Activation{kNoBuffer, draft.whole(away), state_.now};
}

Range ActivationMovement::brought_back(Activation& activation, const Task& task) {
  Draft& draft = state_.draft;
  if (activation.away.has_value()) {
    const Range away = *activation.away;
    const BufferId back =
        draft.add_buffer(draft.name("{} and back", draft.buffers.at(away.buffer).name),
                         away.size_bytes, state_.compute, Account::kActivations, Life::kTransient);
    const Load load =
        state_.load_from(away, state_.compute, activation.away_since + 1, away.size_bytes);
    Mover mover = Mover::load(draft, load, MovementState::labels(task, Account::kActivations));
    mover.copy(away, draft.whole(back));
    activation = Activation{back, std::nullopt, 0};
  }
  return draft.whole(activation.memory);
}

// The messages of one direction are on one lane at either end, in order. A message that the next
// stage is not ready for holds up the lane, but not the compute.
void ActivationMovement::pass_message(const Task& task) {
  const bool is_gradient = task.message == Message::kHiddenGradient;
  Forward& forward = at(task.forward);
  BufferId& buffer = is_gradient ? forward.hidden_gradient : forward.hidden.memory;
  if (task.kind == OpKind::kReceive) {
    buffer = take_slot(is_gradient ? gradient_slots_ : hidden_slots_);
  }
  Op op = message_op(task, state_.whole(buffer), Account::kActivations);
  if (task.kind == OpKind::kSend) op.cost.bytes = static_cast<double>(state_.model.hidden_bytes);
  state_.add_main(std::move(op), task);
}

// Keeps one slot free, so that a receive need not wait for the use right before its own.
BufferId ActivationMovement::take_slot(Slots& slots) {
  if (slots.free.size() < 2) {
    slots.all.push_back(
        state_.draft.add_buffer({.name = state_.draft.name("{} {}", slots.name, slots.all.size()),
                                 .key = {.kind = slots.kind, .number = std::ssize(slots.all)},
                                 .size_bytes = state_.model.hidden_bytes,
                                 .tier = state_.compute,
                                 .account = Account::kActivations,
                                 .life = Life::kPersistent}));
    return slots.all.back();
  }
  const BufferId slot = slots.free.front();
  slots.free.erase(slots.free.begin());
  return slot;
}

void ActivationMovement::release_hidden(std::int32_t forward) {
  release_slot(hidden_slots_, std::exchange(at(forward).hidden.memory, kNoBuffer));
}

void ActivationMovement::release_slot(Slots& slots, BufferId buffer) {
  if (std::ranges::find(slots.all, buffer) == slots.all.end()) return;
  slots.free.push_back(buffer);
}

}  // namespace terrace
