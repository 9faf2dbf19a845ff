#include "runtime/step/gradient_movement.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "runtime/step/rank_exchange.h"

namespace terrace {
namespace {

// Returns the range of a chunk in the fp32 gradient of all of a group.
Range chunk_in(const StepModel& model, const Range& whole, std::int32_t group, std::int64_t chunk) {
  const auto begin = static_cast<std::size_t>(model.chunk_begin(group, chunk)) * sizeof(float);
  const auto elements = static_cast<std::size_t>(model.chunk_size(group, chunk));
  return {whole.buffer, whole.offset + begin, elements * sizeof(float)};
}

// Returns whether the norm partials of a finished gradient wait for the end of the step. On the
// compute lane they would hold up the next backward until ranks have added this gradient.
bool holds_back_partials(const MovementState& state, const Range& part) {
  return state.model.zero.ranks > 1 && state.draft.tier_of(part) == Tier::kDevice;
}

// Returns where this rank's part of a sum over ranks goes: to its home, if that is in the same
// memory as the whole chunk, else over the chunk.
Range target_of_sum(const MovementState& state, const Homes& homes, std::int32_t group,
                    std::int64_t chunk, const Range& whole) {
  const StepModel& model = state.model;
  const Range home = homes.chunk(group, chunk);
  const bool is_near = state.draft.tier_of(home) == state.draft.tier_of(whole);
  if (is_near && homes.is_sharded(group)) {
    return model.zero.in_islands(StateClass::kGradients) ? own_piece(model, home) : home;
  }
  if (is_near) return own_shard(model, home);  // a home of whole chunks
  const std::size_t bytes =
      static_cast<std::size_t>(model.chunk_size(group, chunk)) * size_of(model.gradient_type);
  return own_shard(model, {whole.buffer, whole.offset, bytes});
}

}  // namespace

GradientMovement::GradientMovement(MovementState& state)
    : state_(state),
      homes_(state.draft, state.model, state.policy, StateClass::kGradients),
      coded_(state),
      noise_(state) {
  const auto groups = static_cast<std::size_t>(state.model.group_count());
  writers_.resize(groups);
  buffers_.assign(groups, kNoBuffer);
  sums_.assign(groups, kNoBuffer);
  finished_at_.assign(groups, -1);
  for (std::int32_t g = 0; g < state.model.group_count(); ++g) {
    first_partials_.push_back(state.model.first_partial(g));
  }
  for (std::int32_t t = 0; t < static_cast<std::int32_t>(state.tasks.size()); ++t) {
    note(state.tasks[t], t);
  }
}

void GradientMovement::note(const Task& task, std::int32_t number) {
  if (task.kind == OpKind::kReceive && task.message == Message::kBorrowedGradient) {
    return add_writer(task.group, task, number);
  }
  if (task.kind != OpKind::kBackward) return;
  const UnitModel& unit = state_.model.units.at(task.unit);
  if (task.micro_batch < 0) {
    for (const std::int32_t group : unit.groups) {
      if (state_.model.owner(group) == task.unit) add_writer(group, task, number);
    }
    return;
  }
  for (std::int32_t s = task.steps.begin; s < task.steps.end; ++s) {
    for (const UnitAccess& write : unit.backward[s].writes) {
      if (write.role == Role::kGradient) add_writer(unit.groups.at(write.number), task, number);
    }
  }
}

void GradientMovement::add_writer(std::int32_t group, const Task& task, std::int32_t number) {
  Writers& writers = writers_.at(group);
  if (writers.first_pass < 0) writers.first_pass = number - task.part;
  writers.last = number;
}

bool GradientMovement::begins(const Task& task, std::int32_t group) const {
  return writers_.at(group).first_pass == state_.now - task.part;
}

bool GradientMovement::joins_micro_batches(std::int32_t group) const {
  return state_.model.joins_micro_batches(state_.model.owner(group));
}

bool GradientMovement::sums_on_host(std::int32_t group) const {
  const StepPolicy& policy = state_.policy;
  return !joins_micro_batches(group) && !policy.unified && policy.micro_batches > 1 &&
         policy.order == MicroBatchOrder::kMicroBatchMajor && homes_.tier(group) != Tier::kDevice;
}

bool GradientMovement::sums_parts(std::int32_t group) const {
  return state_.policy.reduces_micro_batches && state_.model.zero.of_gradients() &&
         !joins_micro_batches(group) && state_.policy.micro_batches > 1;
}

std::size_t GradientMovement::group_bytes(std::int32_t group) const {
  const ParameterGroup& of = state_.model.groups.at(static_cast<std::size_t>(group));
  return static_cast<std::size_t>(of.trained_elements()) * sizeof(float);
}

GradientMovement::Target GradientMovement::target(const Task& task, std::int32_t group) {
  const bool sums_elsewhere = sums_on_host(group) || sums_parts(group);
  if (sums_elsewhere) buffers_.at(group) = kNoBuffer;
  return {whole_in_compute(group), !begins(task, group) && !sums_elsewhere};
}

Range GradientMovement::whole_in_compute(std::int32_t group) {
  const StepModel& model = state_.model;
  if (model.owns(group) && homes_.tier(group) == state_.compute && !homes_.is_sharded(group) &&
      !model.rounds_gradients()) {
    return homes_.group(group);
  }
  BufferId& buffer = buffers_.at(group);
  if (buffer == kNoBuffer) {
    buffer = state_.draft.add_buffer(state_.draft.name("grad[{}] at {}", group, state_.now),
                                     group_bytes(group), state_.compute, Account::kGradients,
                                     Life::kTransient);
  }
  return {buffer, 0, group_bytes(group)};
}

Range GradientMovement::in_compute(std::int32_t group, std::int64_t chunk) {
  return chunk_in(state_.model, whole_in_compute(group), group, chunk);
}

void GradientMovement::settle(std::int32_t group, std::int32_t micro_batch) {
  const Task& task = state_.tasks[state_.now];
  if (sums_parts(group)) return add_to_sum_of_parts(group, micro_batch, begins(task, group));
  if (sums_on_host(group)) return add_to_sum_on_host(group, micro_batch, begins(task, group));
  if (noise_.ends_first(micro_batch)) {
    joins_micro_batches(group) ? noise_.keep_first(group, whole_in_compute(group))
                               : take_first(group, whole_in_compute(group));
  }
  if (ends(group)) finish(group);
}

GradientMovement::Target GradientMovement::first_target(std::int32_t group) {
  const Range kept = noise_.kept(group);
  if (kept.buffer != kNoBuffer) return {kept, true};
  return {whole_in_compute(group), false};
}

void GradientMovement::settle_first(std::int32_t group) {
  const Range whole = first_target(group).range;
  for (std::int64_t c = 0; c < state_.model.trained_chunks(group); ++c) {
    noise_.take_before(group, c, chunk_in(state_.model, whole, group, c));
  }
}

// Takes the sums of squares of the first micro-batch's gradient of a group.
void GradientMovement::take_first(std::int32_t group, const Range& whole) {
  const StepModel& model = state_.model;
  Mover mover = state_.store({model.owner(group), group, 0, kOfThisStep, Account::kGradients});
  for (std::int64_t c = 0; c < model.trained_chunks(group); ++c, mover.next_chunk()) {
    noise_.take(mover, group, c, chunk_in(model, whole, group, c));
  }
}

void GradientMovement::add_to_sum_on_host(std::int32_t group, std::int32_t micro_batch,
                                          bool first) {
  const StepModel& model = state_.model;
  const bool is_home =
      homes_.tier(group) == Tier::kHost && !homes_.is_sharded(group) && !model.rounds_gradients();
  if (first && !is_home) {
    sums_.at(group) =
        state_.draft.add_buffer(state_.draft.name("grad sum[{}]", group), group_bytes(group),
                                Tier::kHost, Account::kGradients, Life::kTransient);
  }
  const GradientRecipe recipe =
      gradient_recipe(SumPlace::kHost, homes_.tier(group), state_.compute);
  Mover mover =
      state_.store({model.owner(group), group, micro_batch, kOfThisStep, Account::kGradients});
  for (std::int64_t c = 0; c < model.trained_chunks(group); ++c, mover.next_chunk()) {
    const auto chunk = static_cast<std::int32_t>(c);
    const Range part = in_compute(group, c);
    const Range sum =
        is_home ? homes_.chunk(group, c) : Range{sums_.at(group), part.offset, part.size_bytes};
    if (first) {
      mover.copy(part, sum, chunk);
      if (noise_.ends_first(micro_batch)) noise_.take(mover, group, c, sum);
    } else {
      accumulate(mover, mover.bring(part, Tier::kHost, chunk), sum, c);
    }
    if (ends(group)) follow(recipe, mover, group, c, sum);
  }
  if (ends(group)) finished_at_.at(group) = state_.now;
}

void GradientMovement::accumulate(Mover& mover, const Range& part, const Range& sum,
                                  std::int64_t chunk) {
  const bool on_device = state_.draft.tier_of(sum) == Tier::kDevice;
  Op op{.kind = OpKind::kAccumulate, .lane = on_device ? Lane::kCompute : Lane::kUpdate};
  op.chunk = static_cast<std::int32_t>(chunk);
  op.reads = {as(Role::kSource, part), as(Role::kTarget, sum)};
  op.writes = {as(Role::kTarget, sum)};
  op.cost.bytes = 3.0 * static_cast<double>(sum.size_bytes);
  mover.add(std::move(op));
}

Range GradientMovement::sum_of_parts(std::int32_t group, std::int64_t chunk) {
  const Range home = homes_.chunk(group, chunk);
  if (homes_.tier(group) != Tier::kNvme) return home;
  if (sums_.at(group) == kNoBuffer) {
    sums_.at(group) =
        state_.draft.add_buffer(state_.draft.name("grad sum[{}]", group), homes_.group_bytes(group),
                                Tier::kHost, Account::kGradients, Life::kTransient);
  }
  return {sums_.at(group), static_cast<std::size_t>(chunk) * homes_.chunk_bytes(group, 0),
          home.size_bytes};
}

void GradientMovement::add_to_sum_of_parts(std::int32_t group, std::int32_t micro_batch,
                                           bool first) {
  const StepModel& model = state_.model;
  const GradientRecipe recipe =
      gradient_recipe(SumPlace::kReducedParts, homes_.tier(group), state_.compute);
  Mover mover =
      state_.store({model.owner(group), group, micro_batch, kOfThisStep, Account::kGradients});
  for (std::int64_t c = 0; c < model.trained_chunks(group); ++c, mover.next_chunk()) {
    const auto chunk = static_cast<std::int32_t>(c);
    const Range sum = sum_of_parts(group, c);
    const Range whole = in_compute(group, c);
    const bool is_near = state_.draft.tier_of(sum) == state_.compute;
    reduce_summed(mover, model, group, c, whole);
    const Range part =
        reduce_to(mover, model, whole, first && is_near ? sum : own_shard(model, whole), chunk);
    if (!first) {
      accumulate(mover, mover.bring(part, state_.draft.tier_of(sum), chunk), sum, c);
    } else if (!is_near) {
      mover.copy(part, sum, chunk);
    }
    if (ends(group)) follow(recipe, mover, group, c, sum);
  }
  buffers_.at(group) = kNoBuffer;
  finished_at_.at(group) = state_.now;
}

void GradientMovement::finish(std::int32_t group) {
  const GradientRecipe recipe =
      gradient_recipe(SumPlace::kCompute, homes_.tier(group), state_.compute);
  Mover mover =
      state_.store({state_.model.owner(group), group, -1, kOfThisStep, Account::kGradients});
  for (std::int64_t c = 0; c < state_.model.trained_chunks(group); ++c, mover.next_chunk()) {
    follow(recipe, mover, group, c, in_compute(group, c));
  }
  buffers_.at(group) = kNoBuffer;
  finished_at_.at(group) = state_.now;
}

void GradientMovement::follow(const GradientRecipe& recipe, Mover& mover, std::int32_t group,
                              std::int64_t chunk, Range range) {
  const auto number = static_cast<std::int32_t>(chunk);
  for (const RecipeStep step : recipe) {
    switch (step) {
      case RecipeStep::kSumOverTensorRanks:
        reduce_summed(mover, state_.model, group, chunk, range);
        break;
      case RecipeStep::kNoisePartials:
        if (noise_.takes_own()) noise_.take(mover, group, chunk, range);
        break;
      case RecipeStep::kRound:
        range = rounded(mover, group, chunk, range);
        break;
      case RecipeStep::kSumOverDataRanks:
        range = reduced(mover, group, chunk, range);
        break;
      case RecipeStep::kToHost:
        range = mover.bring(range, Tier::kHost, number);
        break;
      case RecipeStep::kNormPartials:
        if (holds_back_partials(state_, range)) {
          late_partials_.push_back({group, chunk, range});
        } else {
          add_norm_partials(mover, group, chunk, range);
        }
        break;
      case RecipeStep::kToHome:
        range = taken_home(mover, group, chunk, range);
    }
  }
}

// Where each island has all gradients, the home has the parts of other islands' ranks too.
Range GradientMovement::taken_home(Mover& mover, std::int32_t group, std::int64_t chunk,
                                   const Range& range) {
  const StepModel& model = state_.model;
  Draft& draft = state_.draft;
  const Range home = homes_.chunk(group, chunk);
  const auto number = static_cast<std::int32_t>(chunk);
  if (!model.zero.in_islands(StateClass::kGradients)) {
    if (range.buffer != home.buffer) mover.copy(range, home, number);
    return home;
  }
  const Tier tier = draft.tier_of(range);
  Range gathered = home;
  if (draft.tier_of(home) != tier) {
    const BufferId whole =
        draft.add_buffer(draft.name("grad[{}].{} gathered", group, chunk), home.size_bytes, tier,
                         Account::kGradients, Life::kTransient);
    gathered = {whole, 0, home.size_bytes};
  }
  gather_between_islands(mover, model, {range, gathered, Account::kGradients}, number);
  if (gathered.buffer != home.buffer) mover.copy(gathered, home, number);
  return own_piece(model, home);
}

// Returns a finished chunk in the gradient's type: the chunk itself, or a rounded copy. The copy is
// the chunk's home, if the home has whole chunks in the same memory. A gradient that is coded is
// not rounded before.
Range GradientMovement::rounded(Mover& mover, std::int32_t group, std::int64_t chunk,
                                const Range& whole) {
  const StepModel& model = state_.model;
  if (!model.rounds_gradients() || model.codes_gradients()) return whole;
  Draft& draft = state_.draft;
  const Tier tier = draft.tier_of(whole);
  Range target = homes_.chunk(group, chunk);
  if (homes_.is_sharded(group) || draft.tier_of(target) != tier) {
    const std::size_t bytes =
        static_cast<std::size_t>(model.chunk_size(group, chunk)) * size_of(model.gradient_type);
    target = draft.whole(draft.add_buffer(draft.name("grad[{}].{} rounded", group, chunk), bytes,
                                          tier, Account::kGradients, Life::kTransient));
  }
  Op op{.kind = OpKind::kRoundGradient,
        .lane = tier == Tier::kDevice ? Lane::kCompute : Lane::kUpdate};
  op.chunk = static_cast<std::int32_t>(chunk);
  op.account = Account::kGradients;
  op.reads = {as(Role::kSource, whole)};
  op.writes = {as(Role::kTarget, target)};
  op.cost.bytes = static_cast<double>(whole.size_bytes + target.size_bytes);
  mover.add(std::move(op));
  return target;
}

// Returns the sum over ranks of a chunk: all of it with ZeRO stage 0, this rank's part with the
// other stages, in its home if that is in the same memory. With one rank it is the chunk.
Range GradientMovement::reduced(Mover& mover, std::int32_t group, std::int64_t chunk,
                                const Range& whole) {
  const StepModel& model = state_.model;
  if (model.zero.ranks == 1) return whole;
  const auto number = static_cast<std::int32_t>(chunk);
  if (!model.zero.of_optimizer()) {
    reduce_in_place(mover, model, whole, number);
    return whole;
  }
  const Range target = target_of_sum(state_, homes_, group, chunk, whole);
  if (model.codes_gradients()) return coded_.reduce(mover, group, chunk, whole, target);
  return reduce_to(mover, model, whole, target, number);
}

void GradientMovement::add_late_partials() {
  for (const LatePartials& late : late_partials_) {
    Mover mover = state_.store(
        {state_.model.owner(late.group), late.group, -1, kOfThisStep, Account::kGradients});
    add_norm_partials(mover, late.group, late.chunk, late.part);
  }
  late_partials_.clear();
}

// They run where the gradient is: on the update lane for host memory, on the compute lane for the
// device's.
void GradientMovement::add_norm_partials(Mover& mover, std::int32_t group, std::int64_t chunk,
                                         const Range& part) {
  const StepModel& model = state_.model;
  const SharedBuffers& shared = state_.shared;
  const bool on_device = state_.draft.tier_of(part) == Tier::kDevice;
  const auto count =
      static_cast<std::int64_t>(part.size_bytes / (kBlockElements * size_of(model.gradient_type)));
  // Each chunk before this one is full, and has as many partials as a full chunk.
  const std::int64_t full =
      model.zero.of_optimizer() ? model.chunk_elements / model.zero.ranks : model.chunk_elements;
  const std::int64_t first = first_partials_.at(group) + chunk * (full / kBlockElements);
  const std::size_t begin = static_cast<std::size_t>(first) * sizeof(double);
  const std::size_t bytes = static_cast<std::size_t>(count) * sizeof(double);
  const Range partials{on_device ? shared.partials_device : shared.partials, begin, bytes};
  Op op{.kind = OpKind::kNormPartials, .lane = on_device ? Lane::kCompute : Lane::kUpdate};
  op.chunk = static_cast<std::int32_t>(chunk);
  op.reads = {as(Role::kGradient, part)};
  op.writes = {as(Role::kPartials, partials)};
  op.cost.bytes = static_cast<double>(part.size_bytes);
  mover.add(std::move(op));
  if (on_device) mover.copy(partials, {shared.partials, begin, bytes});
}

void GradientMovement::pass_borrowed(const Task& task) {
  const Range part = in_compute(task.group, task.chunk);
  state_.add_main(message_op(task, part, Account::kGradients), task);
}

Range GradientMovement::updated_part(std::int32_t group, std::int64_t chunk) const {
  const Range home = homes_.chunk(group, chunk);
  const bool has_others = state_.model.zero.of_optimizer() && !homes_.is_sharded(group);
  return has_others ? own_shard(state_.model, home) : home;
}

}  // namespace terrace
