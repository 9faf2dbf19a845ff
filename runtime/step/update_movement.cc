#include "runtime/step/update_movement.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace terrace {

std::vector<Homes> add_update_states(MovementState& state) {
  std::vector<Homes> homes;
  for (const StateClassInfo& info : kStateClasses) {
    if (info.use != StateUse::kUpdate) continue;
    homes.emplace_back(state.draft, state.model, state.policy, info.state);
  }
  return homes;
}

void UpdateMovement::update(const Task& task) {
  const std::int32_t group = task.group;
  const Tier where = state_.policy.update_tier(group);
  const Range gradient =
      state_.brought(MovementState::labels(task, Account::kGradients), task.chunk,
                     gradients_.updated_part(group, task.chunk), where, gradients_.ready_at(group));
  std::vector<Access> states;
  for (const Homes& homes : states_) {
    const Range home = homes.chunk(group, task.chunk);
    const Account account = info_of(homes.state()).account;
    const Range state =
        state_.policy.streams_update(group)
            ? streamed_state(task, homes)
            : state_.brought(MovementState::labels(task, account), task.chunk, home, where);
    states.push_back(as(home_names(homes.state()).role, state));
  }
  const UpdatedParameter parameter = parameters_.for_update(task, where);

  Op op{.kind = OpKind::kUpdate, .lane = where == Tier::kDevice ? Lane::kCompute : Lane::kUpdate};
  const SharedBuffers& shared = state_.shared;
  const BufferId scalars = where == Tier::kDevice ? shared.scalars_device : shared.scalars;
  op.reads = {as(Role::kScalars, state_.whole(scalars)), as(Role::kGradient, gradient)};
  op.reads.insert(op.reads.end(), states.begin(), states.end());
  const bool reads_parameter = state_.model.format_of(group).reads_parameter();
  if (reads_parameter) op.reads.push_back(as(Role::kParameters, parameter.own));
  op.writes = states;
  op.writes.push_back(as(Role::kParameters, parameter.own));
  std::size_t bytes = gradient.size_bytes + (reads_parameter ? 2 : 1) * parameter.own.size_bytes;
  for (const Access& state : states) bytes += 2 * state.size_bytes;
  op.cost.bytes = static_cast<double>(bytes);
  state_.add_main(std::move(op), task);

  if (state_.model.lends(group)) parameters_.send_updated(task, parameter.own);
  for (std::size_t i = 0; i < states.size(); ++i) {
    const Homes& homes = states_[i];
    state_.store_back(task, {states[i].buffer, states[i].offset, states[i].size_bytes},
                      homes.chunk(group, task.chunk), info_of(homes.state()).account);
  }
  parameters_.settle(task, parameter);
}

std::size_t UpdateMovement::largest_streamed_chunk(const Homes& homes, bool deferred) const {
  std::size_t bytes = 0;
  const StepModel& model = state_.model;
  for (std::int32_t g = 0; g < model.group_count(); ++g) {
    const bool is_streamed =
        model.owns(g) && model.group_trains(g) && state_.policy.streams_update(g);
    if (!is_streamed || state_.policy.defers_update(g) != deferred) continue;
    bytes = std::max(bytes, homes.chunk_bytes(g, 0));
  }
  return bytes;
}

// A place is free as soon as its chunk is on its way home: from the task after that update.
Range UpdateMovement::streamed_state(const Task& task, const Homes& homes) {
  Draft& draft = state_.draft;
  const Range home = homes.chunk(task.group, task.chunk);
  StateStream& stream = streams_[homes.state()].at(task.is_deferred() ? 1 : 0);
  const std::size_t turn = stream.chunks++ % stream.places.size();
  StatePlace& place = stream.places.at(turn);
  const bool is_new = place.buffer == kNoBuffer;
  if (is_new) {
    place.buffer =
        draft.add_buffer(draft.name("{} {} stream {}", task.is_deferred() ? "deferred" : "backward",
                                    home_names(homes.state()).buffer, turn),
                         largest_streamed_chunk(homes, task.is_deferred()), state_.compute,
                         Account::kStaging, Life::kTransient);
  }
  const std::size_t held = is_new ? draft.buffers.at(place.buffer).size_bytes : 0;
  const Load load = state_.load_from(home, state_.compute, place.free_from, held);
  place.free_from = state_.now + 1;
  const Account account = info_of(homes.state()).account;
  Mover mover = Mover::load(draft, load, MovementState::labels(task, account));
  const Range passing{place.buffer, 0, home.size_bytes};
  mover.copy(home, passing, task.chunk);
  return passing;
}

void UpdateMovement::norm_finish() {
  const SharedBuffers& shared = state_.shared;
  Op op{.kind = OpKind::kNormFinish, .lane = Lane::kUpdate};
  if (shared.partials != kNoBuffer) {
    op.reads = {as(Role::kPartials, state_.whole(shared.partials))};
  }
  op.reads.push_back(as(Role::kLosses, state_.whole(shared.losses_host)));
  if (state_.model.ranks() == 1 && shared.router_sums_host != kNoBuffer) {
    op.reads.push_back(as(Role::kRouterSums, state_.whole(shared.router_sums_host)));
  }
  if (state_.model.ranks() == 1 && shared.noise_partials != kNoBuffer) {
    op.reads.push_back(as(Role::kNoisePartials, state_.whole(shared.noise_partials)));
  }
  if (state_.model.ranks() > 1) {
    gather_sums();
    op.reads.push_back(as(Role::kSums, state_.whole(shared.sums)));
  }
  if (state_.policy.updates_wait_for_norm) {
    op.writes = {as(Role::kScalars, state_.whole(shared.scalars))};
  }
  if (state_.model.scales_loss) {
    TERRACE_CHECK(state_.policy.updates_wait_for_norm);  // this op says whether they are skipped
    state_.add_loss_scale(op);
    op.writes.push_back(as(Role::kLossScale, state_.whole(shared.loss_scale)));
  }
  state_.add_main(std::move(op), Task{});
  if (state_.policy.updates_wait_for_norm) scalars_to_device();
}

void UpdateMovement::step_scalars() {
  Op op{.kind = OpKind::kStepScalars, .lane = Lane::kUpdate};
  op.writes = {as(Role::kScalars, state_.whole(state_.shared.scalars))};
  state_.add_main(std::move(op), Task{});
  scalars_to_device();
}

void UpdateMovement::scalars_to_device() {
  const SharedBuffers& shared = state_.shared;
  if (shared.scalars_device == kNoBuffer) return;
  Mover mover = state_.store(MovementState::labels(Task{}, Account::kWorkspace));
  mover.copy(state_.whole(shared.scalars), state_.whole(shared.scalars_device));
}

void UpdateMovement::gather_sums() {
  const SharedBuffers& shared = state_.shared;
  Op op{.kind = OpKind::kGatherSums, .lane = Lane::kCollective};
  op.account = Account::kWorkspace;
  op.reads = {as(Role::kLosses, state_.whole(shared.losses_host))};
  if (state_.model.gathers_partials() && shared.partials != kNoBuffer) {
    op.reads.push_back(as(Role::kPartials, state_.whole(shared.partials)));
  }
  if (shared.router_sums_host != kNoBuffer) {
    op.reads.push_back(as(Role::kRouterSums, state_.whole(shared.router_sums_host)));
  }
  if (shared.noise_partials != kNoBuffer) {
    op.reads.push_back(as(Role::kNoisePartials, state_.whole(shared.noise_partials)));
  }
  op.writes = {as(Role::kSums, state_.whole(shared.sums))};
  op.cost.bytes =
      static_cast<double>(sums_bytes_of_rank(state_.model, state_.policy.micro_batches)) *
      (state_.model.ranks() - 1);
  state_.add_main(std::move(op), Task{});
}

}  // namespace terrace
