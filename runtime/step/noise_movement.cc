#include "runtime/step/noise_movement.h"

#include <utility>

namespace terrace {

NoiseMovement::NoiseMovement(MovementState& state)
    : state_(state), kept_(static_cast<std::size_t>(state.model.group_count()), kNoBuffer) {}

Op NoiseMovement::partials_op(std::int32_t group, std::int64_t chunk, const Range& gradient) const {
  const StepModel& model = state_.model;
  const bool on_device = state_.draft.tier_of(gradient) == Tier::kDevice;
  const std::int64_t first =
      noise_partials_before(model, group) + chunk * (model.chunk_elements / kBlockElements);
  const std::int64_t count = model.chunk_size(group, chunk) / kBlockElements;
  const SharedBuffers& shared = state_.shared;
  const Range partials{on_device ? shared.noise_partials_device : shared.noise_partials,
                       static_cast<std::size_t>(first) * sizeof(double),
                       static_cast<std::size_t>(count) * sizeof(double)};
  Op op{.kind = OpKind::kNoisePartials, .lane = on_device ? Lane::kCompute : Lane::kUpdate};
  op.chunk = static_cast<std::int32_t>(chunk);
  op.reads = {as(Role::kGradient, gradient)};
  op.writes = {as(Role::kNoisePartials, partials)};
  op.cost.bytes = static_cast<double>(gradient.size_bytes);
  return op;
}

void NoiseMovement::partials_to_host(Mover& mover, const Access& partials) {
  const SharedBuffers& shared = state_.shared;
  if (partials.buffer == shared.noise_partials) return;
  mover.copy({partials.buffer, partials.offset, partials.size_bytes},
             {shared.noise_partials, partials.offset, partials.size_bytes});
}

void NoiseMovement::take(Mover& mover, std::int32_t group, std::int64_t chunk,
                         const Range& gradient) {
  Op op = partials_op(group, chunk, gradient);
  const Access partials = op.writes.front();
  mover.add(std::move(op));
  partials_to_host(mover, partials);
}

void NoiseMovement::take_before(std::int32_t group, std::int64_t chunk, const Range& gradient) {
  DraftOp op;
  op.op = partials_op(group, chunk, gradient);
  const Access partials = op.op.writes.front();
  op.op.unit = state_.model.owner(group);
  op.op.group = group;
  op.op.micro_batch = 0;
  op.task = state_.now;
  state_.draft.add_op(std::move(op));
  Mover mover =
      state_.store({state_.model.owner(group), group, 0, kOfThisStep, Account::kGradients});
  partials_to_host(mover, partials);
}

void NoiseMovement::keep_first(std::int32_t group, const Range& gradient) {
  Draft& draft = state_.draft;
  const std::int32_t owner = state_.model.owner(group);
  const BufferId copy = draft.add_buffer(draft.name("first grad[{}]", group), gradient.size_bytes,
                                         state_.compute, Account::kGradients, Life::kTransient);
  kept_.at(static_cast<std::size_t>(group)) = copy;
  Op op{.kind = OpKind::kKeepGradient, .lane = Lane::kCompute};
  op.account = Account::kGradients;
  op.reads = {as(Role::kSource, gradient)};
  op.writes = {as(Role::kTarget, {copy, 0, gradient.size_bytes})};
  op.cost.bytes = 2.0 * static_cast<double>(gradient.size_bytes);
  Mover mover = state_.store({owner, group, 0, kOfThisStep, Account::kGradients});
  mover.add(std::move(op));
}

Range NoiseMovement::kept(std::int32_t group) const {
  const BufferId copy = kept_.at(static_cast<std::size_t>(group));
  if (copy == kNoBuffer) return {};
  const ParameterGroup& of = state_.model.groups.at(static_cast<std::size_t>(group));
  return {copy, 0, static_cast<std::size_t>(of.trained_elements()) * sizeof(float)};
}

}  // namespace terrace
