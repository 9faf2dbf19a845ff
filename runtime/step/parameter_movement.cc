#include "runtime/step/parameter_movement.h"

#include <algorithm>
#include <utility>

#include "runtime/step/coded_exchange.h"
#include "runtime/step/rank_exchange.h"

namespace terrace {

ParameterMovement::ParameterMovement(MovementState& state)
    : state_(state),
      homes_(state.draft, state.model, state.policy, StateClass::kParameters),
      uses_(parameter_uses(state.model, state.tasks)),
      instances_(uses_.size()),
      updated_on_host_(uses_.size()),
      updated_at_(uses_.size(), -1) {}

Range ParameterMovement::for_task(std::int32_t group) {
  if (homes_.tier(group) == state_.compute && !homes_.is_sharded(group)) {
    return homes_.group(group);
  }
  const std::size_t use = next_use(group);
  std::optional<Instance>& instance = instances_.at(group);
  if (!instance.has_value() || (instance->use != use && !stays(group, use))) {
    instance = Instance{load(group, use), use};
  }
  instance->use = use;
  return {instance->buffer, 0, state_.model.group_bytes(group)};
}

std::size_t ParameterMovement::next_use(std::int32_t group) const {
  const auto& uses = uses_.at(group);
  return static_cast<std::size_t>(std::ranges::lower_bound(uses, state_.now) - uses.begin());
}

BufferId ParameterMovement::add_buffer(std::int32_t group) {
  return state_.draft.add_buffer(state_.draft.name("param[{}] at {}", group, state_.now),
                                 state_.model.group_bytes(group), state_.compute,
                                 Account::kParameters, Life::kTransient);
}

bool ParameterMovement::stays(std::int32_t group, std::size_t use) const {
  return uses_[group][use] - uses_[group][use - 1] <= 1;
}

Mover::Labels ParameterMovement::labels_of_load(std::int32_t group) const {
  return {state_.model.owner(group), group, -1, kOfThisStep, Account::kParameters};
}

BufferId ParameterMovement::load(std::int32_t group, std::size_t use) {
  const StepModel& model = state_.model;
  const BufferId arrived = add_buffer(group);
  const std::vector<Range> updated = std::exchange(updated_on_host_.at(group), {});
  const bool two_hops = state_.compute == Tier::kDevice && homes_.tier(group) == Tier::kNvme &&
                        std::ssize(updated) < model.chunks(group);
  // The pieces of two chunks at a time are on their way to be gathered.
  const bool passes_pieces =
      model.zero.in_islands(StateClass::kParameters) && homes_.tier(group) != state_.compute;
  const std::size_t passing = 2 * homes_.largest_chunk_bytes(group);
  Load load = state_.load_of_now(updated_at_.at(group) + 1,
                                 model.group_bytes(group) + (passes_pieces ? passing : 0));
  load.staging_bytes = two_hops ? passing : 0;
  load.target = arrived;
  load.group = group;
  load.use = use;
  if (instances_.at(group).has_value()) load.before = instances_.at(group)->buffer;
  Mover mover = Mover::load(state_.draft, load, labels_of_load(group));
  const std::size_t width = model.parameter_bytes(group);
  for (std::int32_t c = 0; c < static_cast<std::int32_t>(model.chunks(group)); ++c) {
    const Range target{arrived, static_cast<std::size_t>(model.chunk_begin(group, c)) * width,
                       static_cast<std::size_t>(model.chunk_size(group, c)) * width};
    const Range source = c < std::ssize(updated) ? updated[c] : homes_.chunk(group, c);
    if (homes_.is_sharded(group)) {
      load_shards(mover, group, {source, target}, c);
    } else {
      mover.copy(source, target, c);
    }
    mover.next_chunk();
  }
  return arrived;
}

// A shard whose home is in another tier first goes to its place in the target; or, where the home
// has pieces of the chunk, to a place of its own.
void ParameterMovement::load_shards(Mover& mover, std::int32_t group, const ShardLoad& load,
                                    std::int32_t chunk) {
  const auto& [home, target] = load;
  const StepModel& model = state_.model;
  Draft& draft = state_.draft;
  const bool in_islands = model.zero.in_islands(StateClass::kParameters);
  Range own = home;
  if (draft.tier_of(home) != state_.compute) {
    own = own_shard(model, target);
    if (in_islands) {
      const BufferId pieces =
          draft.add_buffer(draft.name("pieces of {}.{}", target.buffer, chunk), home.size_bytes,
                           state_.compute, Account::kStaging, Life::kTransient);
      own = {pieces, 0, home.size_bytes};
    }
    mover.copy(home, own, chunk);
  }
  if (in_islands) return gather_in_island(mover, model, own, target, chunk);
  // Frozen parameters may be bytes that are no numbers.
  const bool is_coded = model.codes_parameters() && chunk < model.trained_chunks(group);
  if (is_coded) return gather_coded(mover, draft, model, {own, target, group, chunk});
  gather_shards(mover, model, own, target, chunk);
}

bool ParameterMovement::updates_part_of_home(std::int32_t group) const {
  return state_.model.zero.parts(StateClass::kOptimizer) > homes_.parts(group);
}

Range ParameterMovement::own_part(std::int32_t group, const Range& home) const {
  return homes_.is_sharded(group) ? own_piece(state_.model, home) : own_shard(state_.model, home);
}

// With ZeRO stages 1 and 2 the home has the whole chunk, and a rank updates its shard of it. The
// shards are gathered in memory: in the home, or on the way to it. In islands, the home has the
// shards of several ranks.
UpdatedParameter ParameterMovement::for_update(const Task& task, Tier where) {
  UpdatedParameter parameter;
  parameter.home = homes_.chunk(task.group, task.chunk);
  parameter.is_divided = updates_part_of_home(task.group);
  const bool in_place = updates_in_place(task, where);
  parameter.gathers_at_home =
      parameter.is_divided && !in_place && state_.draft.tier_of(parameter.home) != Tier::kNvme;
  if (parameter.gathers_at_home) parameter.home = own_part(task.group, parameter.home);
  parameter.updated = in_place ? updated_in_place(task, parameter.home)
                               : updated_elsewhere(task, parameter.home, where);
  parameter.own = parameter.is_divided && !parameter.gathers_at_home
                      ? own_part(task.group, parameter.updated)
                      : parameter.updated;
  return parameter;
}

// In the compute tier the update may write where the forward or backward reads. Shards are an
// exception, because forward and backward do not read them.
bool ParameterMovement::updates_in_place(const Task& task, Tier where) const {
  return state_.model.format_of(task.group).reads_parameter() && where == state_.compute &&
         homes_.tier(task.group) != where && !homes_.is_sharded(task.group);
}

Range ParameterMovement::updated_elsewhere(const Task& task, const Range& home, Tier where) {
  Draft& draft = state_.draft;
  if (draft.tier_of(home) == where) return home;
  if (!state_.model.format_of(task.group).reads_parameter()) {
    const BufferId fresh =
        draft.add_buffer(draft.name("param[{}].{} updated", task.group, task.chunk),
                         home.size_bytes, where, Account::kStaging, Life::kTransient);
    return {fresh, 0, home.size_bytes};
  }
  const Range parameter = state_.brought(labels_of_both(task), task.chunk, home, where);
  if (draft.tier_of(home) == Tier::kNvme) updated_on_host_.at(task.group).push_back(parameter);
  return parameter;
}

void ParameterMovement::settle(const Task& task, const UpdatedParameter& parameter) {
  if (parameter.is_divided && !parameter.gathers_at_home) {
    gather_updated(task, parameter.own, parameter.updated);
  }
  state_.store_back(task, parameter.updated, parameter.home, Account::kParameters);
  if (parameter.gathers_at_home) {
    gather_updated(task, parameter.home, homes_.chunk(task.group, task.chunk));
  }
  updated_at_.at(task.group) = state_.now;
}

void ParameterMovement::gather_updated(const Task& task, const Range& own, const Range& home) {
  Mover mover = state_.store(MovementState::labels(task, Account::kParameters));
  if (homes_.is_sharded(task.group)) {
    return gather_between_islands(mover, state_.model, {own, home}, task.chunk);
  }
  gather_shards(mover, state_.model, own, home, task.chunk);
}

Range ParameterMovement::updated_in_place(const Task& task, const Range& home) {
  std::optional<Instance>& instance = instances_.at(task.group);
  if (!just_used(task)) {
    const std::size_t use = next_use(task.group);
    if (use == uses_.at(task.group).size()) {
      return state_.brought(MovementState::labels(task, Account::kParameters), task.chunk, home,
                            state_.compute);
    }
    if (task.chunk == 0) {
      instance = Instance{add_buffer(task.group), use};
      load_frozen(task, instance->buffer);
    }
    // The first chunk's load takes the room for all chunks, and no other load may take it earlier.
    // So the others are issued no earlier than the task that needs the first chunk.
    const bool is_first = task.chunk == 0;
    const Load load = state_.load_from(home, state_.compute, is_first ? 0 : state_.now - task.chunk,
                                       is_first ? state_.model.group_bytes(task.group) : 0);
    Mover mover = Mover::load(state_.draft, load, labels_of_both(task));
    mover.copy(home, {instance->buffer, offset_in_group(task), home.size_bytes}, task.chunk);
  }
  return {instance->buffer, offset_in_group(task), home.size_bytes};
}

// It waits for nothing, but must not take the room for the whole buffer before the first chunk's
// load does, so it is issued no earlier.
void ParameterMovement::load_frozen(const Task& task, BufferId target) {
  const StepModel& model = state_.model;
  const std::int32_t group = task.group;
  const std::int64_t first = model.trained_chunks(group);
  if (first == model.chunks(group)) return;
  const Load load = state_.load_from(homes_.chunk(group, first), state_.compute, state_.now, 0);
  Mover mover = Mover::load(state_.draft, load, labels_of_load(group));
  for (std::int64_t c = first; c < model.chunks(group); ++c, mover.next_chunk()) {
    const Range home = homes_.chunk(group, c);
    const auto begin = static_cast<std::size_t>(model.chunk_begin(group, c));
    mover.copy(home, {target, begin * model.parameter_bytes(group), home.size_bytes},
               static_cast<std::int32_t>(c));
  }
}

Mover::Labels ParameterMovement::labels_of_both(const Task& task) {
  return {task.unit, task.group, -1, task.is_deferred() ? kOfBothSteps : kOfThisStep,
          Account::kParameters};
}

bool ParameterMovement::just_used(const Task& task) const {
  const std::optional<Instance>& instance = instances_.at(task.group);
  if (!instance.has_value()) return false;
  // Updates of the unit's other groups and chunks may stand between.
  std::int32_t before = state_.now - 1;
  const auto is_of_unit = [&](const Task& other) {
    return other.kind == OpKind::kUpdate && other.unit == task.unit;
  };
  while (before >= 0 && is_of_unit(state_.tasks[before])) --before;
  return uses_.at(task.group).at(instance->use) == before;
}

std::size_t ParameterMovement::offset_in_group(const Task& task) const {
  return static_cast<std::size_t>(state_.model.chunk_begin(task.group, task.chunk)) *
         state_.model.parameter_bytes(task.group);
}

void ParameterMovement::send_updated(const Task& task, const Range& own) {
  Mover mover = state_.store(MovementState::labels(task, Account::kParameters));
  const bool meets_on_host = state_.model.updates_meet_on_host;
  const Range source = meets_on_host ? mover.bring(own, Tier::kHost, task.chunk) : own;
  const Task sends{.kind = OpKind::kSend, .message = Message::kUpdated};
  Op op = message_op(sends, source, Account::kParameters);
  op.chunk = task.chunk;
  mover.add(std::move(op));
}

void ParameterMovement::receive_updated(const Task& task) {
  const StepModel& model = state_.model;
  UpdatedParameter parameter;
  parameter.home = homes_.chunk(task.group, task.chunk);
  const Tier tier = state_.draft.tier_of(parameter.home);
  parameter.is_divided = updates_part_of_home(task.group);
  parameter.gathers_at_home = parameter.is_divided && tier != Tier::kNvme;
  if (parameter.gathers_at_home) parameter.home = own_part(task.group, parameter.home);
  parameter.updated = parameter.home;
  if (tier == Tier::kNvme || (tier == Tier::kDevice && model.updates_meet_on_host)) {
    const BufferId arrived = state_.draft.add_buffer(
        state_.draft.name("param[{}].{} received", task.group, task.chunk),
        parameter.home.size_bytes, Tier::kHost, Account::kStaging, Life::kTransient);
    parameter.updated = {arrived, 0, parameter.home.size_bytes};
  }
  const bool has_others = parameter.is_divided && !parameter.gathers_at_home;
  parameter.own = has_others ? own_part(task.group, parameter.updated) : parameter.updated;
  state_.add_main(message_op(task, parameter.own, Account::kParameters), task);
  settle(task, parameter);
}

}  // namespace terrace
