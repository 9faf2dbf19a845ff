#include <algorithm>

#include "base/check.h"
#include "runtime/step/lowering.h"

namespace terrace {

bool Lowering::sums_on_host(std::int32_t unit) const {
  return !model_.joins_micro_batches(unit) && !policy_.unified && policy_.micro_batches > 1 &&
         policy_.order == MicroBatchOrder::kMicroBatchMajor &&
         gradients_->tier(unit) != Tier::kDevice;
}

// The embedding's gradient is computed from all micro-batches at once.
bool Lowering::sums_shards(std::int32_t unit) const {
  return policy_.reduces_micro_batches && model_.zero.of_gradients() &&
         !model_.joins_micro_batches(unit) && policy_.micro_batches > 1;
}

Range Lowering::compute_gradient(std::int32_t unit) {
  if (model_.has_unit(unit) && gradients_->tier(unit) == compute_ &&
      !gradients_->is_sharded(unit) && !model_.rounds_gradients()) {
    return gradients_->unit(unit);
  }
  if (gradient_.at(unit) == kNoBuffer) {
    gradient_.at(unit) =
        draft_.add_buffer(draft_.name("grad[{}] at {}", unit, now_), gradient_bytes(unit), compute_,
                          Account::kGradients, Life::kTransient);
  }
  return {gradient_.at(unit), 0, gradient_bytes(unit)};
}

void Lowering::settle_gradient(std::int32_t unit, std::int32_t micro_batch) {
  if (sums_shards(unit)) return settle_shards(unit, micro_batch);
  const bool first = begins_gradient(unit);
  const bool last = ends_gradient(unit);
  if (!sums_on_host(unit)) {
    if (last) finish_gradient(unit);
    return;
  }
  const bool is_home = gradients_->tier(unit) == Tier::kHost && !gradients_->is_sharded(unit) &&
                       !model_.rounds_gradients();
  if (first && !is_home) {
    sum_.at(unit) = draft_.add_buffer(draft_.name("grad sum[{}]", unit), gradient_bytes(unit),
                                      Tier::kHost, Account::kGradients, Life::kTransient);
  }
  Mover mover = Mover::store(draft_, now_, {unit, micro_batch, kOfThisStep, Account::kGradients});
  for (std::int64_t c = 0; c < model_.trained_chunks(unit); ++c, mover.next_chunk()) {
    const Range part = compute_gradient_chunk(unit, c);
    const Range sum =
        is_home ? gradients_->chunk(unit, c) : Range{sum_.at(unit), part.offset, part.size_bytes};
    if (first) {
      mover.copy(part, sum, static_cast<std::int32_t>(c));
    } else {
      accumulate_on_host(mover, part, sum, c);
    }
    if (!last) continue;
    const Range home = gradients_->chunk(unit, c);
    const Range reduced = reduce_finished(mover, unit, c, sum);
    add_norm_partials(mover, unit, c, reduced);
    if (reduced.buffer != home.buffer) mover.copy(reduced, home, static_cast<std::int32_t>(c));
  }
  if (last) finished_at_.at(unit) = now_;
}

void Lowering::accumulate_on_host(Mover& mover, const Range& part, const Range& sum,
                                  std::int64_t chunk) {
  accumulate(mover, mover.bring(part, Tier::kHost, static_cast<std::int32_t>(chunk)), sum, chunk);
}

void Lowering::accumulate(Mover& mover, const Range& part, const Range& sum, std::int64_t chunk) {
  const bool on_device = draft_.tier_of(sum) == Tier::kDevice;
  Op op{.kind = OpKind::kAccumulate, .lane = on_device ? Lane::kCompute : Lane::kUpdate};
  op.chunk = static_cast<std::int32_t>(chunk);
  op.reads = {as(Role::kSource, part), as(Role::kTarget, sum)};
  op.writes = {as(Role::kTarget, sum)};
  op.cost.bytes = 3.0 * static_cast<double>(sum.size_bytes);
  mover.add(std::move(op));
}

Range Lowering::shard_sum(std::int32_t unit, std::int64_t chunk) {
  const Range home = gradients_->chunk(unit, chunk);
  if (gradients_->tier(unit) != Tier::kNvme) return home;
  if (sum_.at(unit) == kNoBuffer) {
    sum_.at(unit) =
        draft_.add_buffer(draft_.name("grad sum[{}]", unit), gradients_->unit_bytes(unit),
                          Tier::kHost, Account::kGradients, Life::kTransient);
  }
  return {sum_.at(unit), static_cast<std::size_t>(chunk) * gradients_->chunk_bytes(unit, 0),
          home.size_bytes};
}

void Lowering::settle_shards(std::int32_t unit, std::int32_t micro_batch) {
  Mover mover = Mover::store(draft_, now_, {unit, micro_batch, kOfThisStep, Account::kGradients});
  const bool first = begins_gradient(unit);
  for (std::int64_t c = 0; c < model_.trained_chunks(unit); ++c, mover.next_chunk()) {
    const auto chunk = static_cast<std::int32_t>(c);
    const Range sum = shard_sum(unit, c);
    const Range whole = compute_gradient_chunk(unit, c);
    const bool is_near = draft_.tier_of(sum) == compute_;
    reduce_summed(mover, unit, c, whole);
    const Range part = reduce_to(mover, whole, first && is_near ? sum : own_shard(whole), chunk);
    if (!first) {
      accumulate(mover, mover.bring(part, draft_.tier_of(sum), chunk), sum, c);
    } else if (!is_near) {
      mover.copy(part, sum, chunk);
    }
    if (!ends_gradient(unit)) continue;
    add_norm_partials(mover, unit, c, sum);
    const Range home = gradients_->chunk(unit, c);
    if (sum.buffer != home.buffer) mover.copy(sum, home, chunk);
  }
  gradient_.at(unit) = kNoBuffer;
  finished_at_.at(unit) = now_;
}

Range Lowering::compute_gradient_chunk(std::int32_t unit, std::int64_t chunk) {
  const auto begin = static_cast<std::size_t>(model_.chunk_begin(unit, chunk)) * sizeof(float);
  const Range whole = compute_gradient(unit);
  const auto elements = static_cast<std::size_t>(model_.chunk_size(unit, chunk));
  return {whole.buffer, whole.offset + begin, elements * sizeof(float)};
}

void Lowering::finish_gradient(std::int32_t unit) {
  const Tier home = gradients_->tier(unit);
  Mover mover = Mover::store(draft_, now_, {unit, -1, kOfThisStep, Account::kGradients});
  for (std::int64_t c = 0; c < model_.trained_chunks(unit); ++c, mover.next_chunk()) {
    const Range part = reduce_finished(mover, unit, c, compute_gradient_chunk(unit, c));
    const auto chunk = static_cast<std::int32_t>(c);
    if (home == compute_) {
      add_norm_partials(mover, unit, c, part);
    } else if (home == Tier::kHost) {
      const Range target = gradients_->chunk(unit, c);
      mover.copy(part, target, chunk);
      add_norm_partials(mover, unit, c, target);
    } else {
      const Range on_host = mover.bring(part, Tier::kHost, chunk);
      add_norm_partials(mover, unit, c, on_host);
      mover.copy(on_host, gradients_->chunk(unit, c), chunk);
    }
  }
  gradient_.at(unit) = kNoBuffer;
  finished_at_.at(unit) = now_;
}

void Lowering::add_norm_partials(Mover& mover, std::int32_t unit, std::int64_t chunk,
                                 const Range& part) {
  const bool on_device = draft_.tier_of(part) == Tier::kDevice;
  const auto blocks_of = [this](std::size_t bytes) {
    return static_cast<std::int64_t>(bytes / (kBlockElements * size_of(model_.gradient_type)));
  };
  const std::int64_t count = blocks_of(part.size_bytes);
  // Each chunk before this one is full, and has as many partials as a full chunk.
  const std::int64_t full = model_.zero.of_optimizer() ? model_.chunk_elements / model_.zero.ranks
                                                       : model_.chunk_elements;
  const std::int64_t first = first_partials_.at(unit) + chunk * (full / kBlockElements);
  const std::size_t begin = static_cast<std::size_t>(first) * sizeof(double);
  const std::size_t bytes = static_cast<std::size_t>(count) * sizeof(double);
  const Range partials{on_device ? shared_.partials_device : shared_.partials, begin, bytes};
  Op op{.kind = OpKind::kNormPartials, .lane = on_device ? Lane::kCompute : Lane::kUpdate};
  op.chunk = static_cast<std::int32_t>(chunk);
  op.reads = {as(Role::kGradient, part)};
  op.writes = {as(Role::kPartials, partials)};
  op.cost.bytes = static_cast<double>(part.size_bytes);
  mover.add(std::move(op));
  if (on_device) mover.copy(partials, {shared_.partials, begin, bytes});
}

void Lowering::norm_finish() {
  Op op{.kind = OpKind::kNormFinish, .lane = Lane::kUpdate};
  if (shared_.partials != kNoBuffer) {
    op.reads = {as(Role::kPartials, draft_.whole(shared_.partials))};
  }
  op.reads.push_back(as(Role::kLosses, draft_.whole(shared_.losses_host)));
  if (model_.ranks() > 1) {
    gather_sums();
    op.reads.push_back(as(Role::kSums, draft_.whole(shared_.sums)));
  }
  if (policy_.updates_wait_for_norm) {
    op.writes = {as(Role::kScalars, draft_.whole(shared_.scalars))};
  }
  if (model_.scales_loss) {
    TERRACE_CHECK(policy_.updates_wait_for_norm);  // this op says whether they are skipped
    add_loss_scale(op);
    op.writes.push_back(as(Role::kLossScale, draft_.whole(shared_.loss_scale)));
  }
  main_op(std::move(op), Task{});
  if (policy_.updates_wait_for_norm) scalars_to_device();
}

void Lowering::step_scalars() {
  Op op{.kind = OpKind::kStepScalars, .lane = Lane::kUpdate};
  op.writes = {as(Role::kScalars, draft_.whole(shared_.scalars))};
  main_op(std::move(op), Task{});
  scalars_to_device();
}

void Lowering::scalars_to_device() {
  if (shared_.scalars_device == kNoBuffer) return;
  Mover mover = Mover::store(draft_, now_, labels(Task{}, Account::kWorkspace));
  mover.copy(draft_.whole(shared_.scalars), draft_.whole(shared_.scalars_device));
}

void Lowering::update(const Task& task) {
  const std::int32_t unit = task.unit;
  const Tier where = policy_.update_tier(unit);
  const Range gradient_home = gradients_->chunk(unit, task.chunk);
  const bool whole_gradient = model_.zero.of_optimizer() && !gradients_->is_sharded(unit);
  const Range gradient = brought(labels(task, Account::kGradients), task.chunk,
                                 whole_gradient ? own_shard(gradient_home) : gradient_home, where,
                                 finished_at_.at(unit) + 1);
  std::vector<Access> states;
  for (const Homes& homes : update_states_) {
    const Range home = homes.chunk(unit, task.chunk);
    const Range state =
        policy_.streams_update(unit)
            ? streamed_state(task, homes)
            : brought(labels(task, info_of(homes.state()).account), task.chunk, home, where);
    states.push_back(as(home_names(homes.state()).role, state));
  }
  const UpdatedParameter parameter = updated_parameter(task, where);

  Op op{.kind = OpKind::kUpdate, .lane = where == Tier::kDevice ? Lane::kCompute : Lane::kUpdate};
  const BufferId scalars = where == Tier::kDevice ? shared_.scalars_device : shared_.scalars;
  op.reads = {as(Role::kScalars, draft_.whole(scalars)), as(Role::kGradient, gradient)};
  op.reads.insert(op.reads.end(), states.begin(), states.end());
  const bool reads_parameter = model_.state_format.reads_parameter();
  if (reads_parameter) op.reads.push_back(as(Role::kParameters, parameter.own));
  op.writes = states;
  op.writes.push_back(as(Role::kParameters, parameter.own));
  std::size_t bytes = gradient.size_bytes + (reads_parameter ? 2 : 1) * parameter.own.size_bytes;
  for (const Access& state : states) bytes += 2 * state.size_bytes;
  op.cost.bytes = static_cast<double>(bytes);
  main_op(std::move(op), task);

  if (unit == 0 && model_.tied && model_.pipeline.stages > 1) send_updated(task, parameter.own);
  for (std::size_t i = 0; i < states.size(); ++i) {
    const Homes& homes = update_states_[i];
    store_back(task, {states[i].buffer, states[i].offset, states[i].size_bytes},
               homes.chunk(unit, task.chunk), info_of(homes.state()).account);
  }
  settle_parameter(task, parameter);
  updated_at_.at(unit) = now_;
}

Range Lowering::brought(const Mover::Labels& labels, std::int32_t chunk, const Range& home,
                        Tier where, std::int32_t earliest) {
  if (draft_.tier_of(home) == where) return home;
  Load load = load_to(where, home, earliest, home.size_bytes);
  load.is_late = labels.parts == kOfStepBefore && labels.account == Account::kGradients;
  load.may_be_carried = labels.parts == kOfStepBefore && is_of_updates(labels.account);
  Mover mover = Mover::load(draft_, load, labels);
  return mover.bring(home, where, chunk);
}

Load Lowering::load_to(Tier where, const Range& home, std::int32_t earliest,
                       std::size_t target_bytes) const {
  Load load = new_load(earliest, target_bytes);
  load.target_tier = where;
  const bool two_hops = where == Tier::kDevice && draft_.tier_of(home) == Tier::kNvme;
  load.staging_bytes = two_hops ? home.size_bytes : 0;
  return load;
}

std::size_t Lowering::largest_streamed_chunk(const Homes& homes, bool deferred) const {
  std::size_t bytes = 0;
  for (std::int32_t u = 0; u <= model_.last_unit(); ++u) {
    if (!model_.has_unit(u) || !model_.trains(u) || !policy_.streams_update(u)) continue;
    if (policy_.defers_update(u) == deferred) bytes = std::max(bytes, homes.chunk_bytes(u, 0));
  }
  return bytes;
}

// A place is free as soon as its chunk is on its way home: from the task after that update.
Range Lowering::streamed_state(const Task& task, const Homes& homes) {
  const Range home = homes.chunk(task.unit, task.chunk);
  StateStream& stream = state_streams_[homes.state()].at(task.is_deferred() ? 1 : 0);
  const std::size_t turn = stream.chunks++ % stream.places.size();
  StatePlace& place = stream.places.at(turn);
  const bool is_new = place.buffer == kNoBuffer;
  if (is_new) {
    place.buffer = draft_.add_buffer(
        draft_.name("{} {} stream {}", task.is_deferred() ? "deferred" : "backward",
                    home_names(homes.state()).buffer, turn),
        largest_streamed_chunk(homes, task.is_deferred()), compute_, Account::kStaging,
        Life::kTransient);
  }
  const std::size_t held = is_new ? draft_.buffers.at(place.buffer).size_bytes : 0;
  const Load load = load_to(compute_, home, place.free_from, held);
  place.free_from = now_ + 1;
  Mover mover = Mover::load(draft_, load, labels(task, info_of(homes.state()).account));
  const Range passing{place.buffer, 0, home.size_bytes};
  mover.copy(home, passing, task.chunk);
  return passing;
}

// With ZeRO stages 1 and 2 the home has the whole chunk, and a rank updates its shard of it. The
// shards are gathered in memory: in the home, or on the way to it.
Lowering::UpdatedParameter Lowering::updated_parameter(const Task& task, Tier where) {
  UpdatedParameter parameter;
  parameter.home = parameters_.chunk(task.unit, task.chunk);
  parameter.is_divided = model_.zero.of_optimizer() && !parameters_.is_sharded(task.unit);
  const bool in_place = updates_in_place(task, where);
  parameter.gathers_at_home =
      parameter.is_divided && !in_place && draft_.tier_of(parameter.home) != Tier::kNvme;
  if (parameter.gathers_at_home) parameter.home = own_shard(parameter.home);
  parameter.updated = in_place ? updated_in_place(task, parameter.home)
                               : updated_elsewhere(task, parameter.home, where);
  parameter.own = parameter.is_divided && !parameter.gathers_at_home ? own_shard(parameter.updated)
                                                                     : parameter.updated;
  return parameter;
}

// In the compute tier the update may write where the forward or backward reads. Shards are an
// exception, because forward and backward do not read them.
bool Lowering::updates_in_place(const Task& task, Tier where) const {
  return model_.state_format.reads_parameter() && where == compute_ &&
         parameters_.tier(task.unit) != where && !parameters_.is_sharded(task.unit);
}

Range Lowering::updated_elsewhere(const Task& task, const Range& home, Tier where) {
  if (draft_.tier_of(home) == where) return home;
  if (!model_.state_format.reads_parameter()) {
    const BufferId fresh =
        draft_.add_buffer(draft_.name("param[{}].{} updated", task.unit, task.chunk),
                          home.size_bytes, where, Account::kStaging, Life::kTransient);
    return {fresh, 0, home.size_bytes};
  }
  const Range parameter = brought(labels_of_both(task), task.chunk, home, where);
  if (draft_.tier_of(home) == Tier::kNvme) updated_on_host_.at(task.unit).push_back(parameter);
  return parameter;
}

void Lowering::settle_parameter(const Task& task, const UpdatedParameter& parameter) {
  if (parameter.is_divided && !parameter.gathers_at_home) {
    gather_updated(task, parameter.own, parameter.updated);
  }
  store_back(task, parameter.updated, parameter.home, Account::kParameters);
  if (parameter.gathers_at_home) {
    gather_updated(task, parameter.home, parameters_.chunk(task.unit, task.chunk));
  }
}

Range Lowering::updated_in_place(const Task& task, const Range& home) {
  std::optional<Instance>& instance = instances_.at(task.unit);
  if (!just_used(task)) {
    const std::size_t use = next_use(task.unit);
    if (use == uses_.at(task.unit).size()) {
      return brought(labels(task, Account::kParameters), task.chunk, home, compute_);
    }
    if (task.chunk == 0) {
      instance = Instance{parameter_buffer(task.unit), use};
      load_frozen(task, instance->buffer);
    }
    // The first chunk's load takes the room for all chunks, and no other load may take it earlier.
    // So the others are issued no earlier than the task that needs the first chunk.
    const bool is_first = task.chunk == 0;
    const Load load = load_to(compute_, home, is_first ? 0 : now_ - task.chunk,
                              is_first ? unit_bytes(task.unit) : 0);
    Mover mover = Mover::load(draft_, load, labels_of_both(task));
    mover.copy(home, {instance->buffer, offset_in_unit(task), home.size_bytes}, task.chunk);
  }
  return {instance->buffer, offset_in_unit(task), home.size_bytes};
}

// It waits for nothing, but must not take the room for the whole buffer before the first chunk's
// load does, so it is issued no earlier.
void Lowering::load_frozen(const Task& task, BufferId target) {
  const std::int64_t first = model_.trained_chunks(task.unit);
  if (first == model_.chunks(task.unit)) return;
  const Load load = load_to(compute_, parameters_.chunk(task.unit, first), now_, 0);
  Mover mover = Mover::load(draft_, load, {task.unit, -1, kOfThisStep, Account::kParameters});
  for (std::int64_t c = first; c < model_.chunks(task.unit); ++c, mover.next_chunk()) {
    const Range home = parameters_.chunk(task.unit, c);
    const auto begin = static_cast<std::size_t>(model_.chunk_begin(task.unit, c));
    mover.copy(home, {target, begin * model_.parameter_bytes(), home.size_bytes},
               static_cast<std::int32_t>(c));
  }
}

bool Lowering::just_used(const Task& task) const {
  const std::optional<Instance>& instance = instances_.at(task.unit);
  return instance.has_value() && uses_.at(task.unit).at(instance->use) == now_ - 1 - task.chunk;
}

void Lowering::store_back(const Task& task, const Range& range, const Range& home,
                          Account account) {
  if (range.buffer == home.buffer) return;
  Mover mover = Mover::store(draft_, now_, labels(task, account));
  mover.copy(range, home, task.chunk);
}

}  // namespace terrace
