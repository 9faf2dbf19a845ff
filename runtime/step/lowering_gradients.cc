#include <fmt/format.h>

#include "runtime/step/lowering.h"

namespace terrace {

bool Lowering::sums_on_host(std::int32_t unit) const {
  return unit != 0 && !policy_.unified && policy_.micro_batches > 1 &&
         policy_.order == MicroBatchOrder::kMicroBatchMajor &&
         gradients_->tier(unit) != Tier::kDevice;
}

Range Lowering::compute_gradient(std::int32_t unit) {
  if (gradients_->tier(unit) == compute_) return gradients_->unit(unit);
  if (gradient_.at(unit) == kNoBuffer) {
    gradient_.at(unit) =
        draft_.add_buffer(fmt::format("grad[{}] at {}", unit, stage_), gradient_bytes(unit),
                          compute_, Account::kGradients, Life::kTransient);
  }
  return {gradient_.at(unit), 0, gradient_bytes(unit)};
}

void Lowering::add_gradient(Op& op, Role role, std::int32_t unit, std::int32_t micro_batch) {
  if (sums_on_host(unit)) gradient_.at(unit) = kNoBuffer;
  const Range target = compute_gradient(unit);
  if (micro_batch > 0 && !sums_on_host(unit)) op.reads.push_back(as(role, target));
  op.writes.push_back(as(role, target));
}

void Lowering::settle_gradient(std::int32_t unit, std::int32_t micro_batch) {
  const bool last = micro_batch == policy_.micro_batches - 1;
  if (!sums_on_host(unit)) {
    if (last) finish_gradient(unit);
    return;
  }
  const bool is_home = gradients_->tier(unit) == Tier::kHost;
  if (micro_batch == 0 && !is_home) {
    sum_.at(unit) = draft_.add_buffer(fmt::format("grad sum[{}]", unit), gradient_bytes(unit),
                                      Tier::kHost, Account::kGradients, Life::kTransient);
  }
  Mover mover = Mover::store(draft_, stage_, {unit, micro_batch, false, Account::kGradients});
  for (std::int64_t c = 0; c < model_.chunks(unit); ++c, mover.next_chunk()) {
    const Range part = compute_gradient_chunk(unit, c);
    const Range sum =
        is_home ? gradients_->chunk(unit, c) : Range{sum_.at(unit), part.offset, part.size_bytes};
    if (micro_batch == 0) {
      mover.copy(part, sum, static_cast<std::int32_t>(c));
    } else {
      accumulate_on_host(mover, part, sum, c);
    }
    if (!last) continue;
    add_norm_partials(mover, unit, c, sum);
    if (!is_home) mover.copy(sum, gradients_->chunk(unit, c), static_cast<std::int32_t>(c));
  }
  if (last) finished_at_.at(unit) = stage_;
}

void Lowering::accumulate_on_host(Mover& mover, const Range& part, const Range& sum,
                                  std::int64_t chunk) {
  const Range arrived = mover.bring(part, Tier::kHost, static_cast<std::int32_t>(chunk));
  Op op{.kind = OpKind::kAccumulate, .lane = Lane::kUpdate};
  op.chunk = static_cast<std::int32_t>(chunk);
  op.reads = {as(Role::kSource, arrived), as(Role::kTarget, sum)};
  op.writes = {as(Role::kTarget, sum)};
  op.cost.bytes = 3.0 * static_cast<double>(sum.size_bytes);
  mover.add(std::move(op));
}

Range Lowering::compute_gradient_chunk(std::int32_t unit, std::int64_t chunk) {
  const auto begin = static_cast<std::size_t>(chunk * model_.chunk_elements) * sizeof(float);
  const Range whole = compute_gradient(unit);
  return {whole.buffer, whole.offset + begin, gradients_->chunk_bytes(unit, chunk)};
}

void Lowering::finish_gradient(std::int32_t unit) {
  const Tier home = gradients_->tier(unit);
  Mover mover = Mover::store(draft_, stage_, {unit, -1, false, Account::kGradients});
  for (std::int64_t c = 0; c < model_.chunks(unit); ++c, mover.next_chunk()) {
    const Range part = compute_gradient_chunk(unit, c);
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
  finished_at_.at(unit) = stage_;
}

void Lowering::add_norm_partials(Mover& mover, std::int32_t unit, std::int64_t chunk,
                                 const Range& part) {
  const bool on_device = draft_.tier_of(part) == Tier::kDevice;
  const std::int64_t first =
      model_.first_partial(unit) + chunk * (model_.chunk_elements / kBlockElements);
  const std::int64_t count = model_.chunk_size(unit, chunk) / kBlockElements;
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
  op.reads = {as(Role::kPartials, draft_.whole(shared_.partials)),
              as(Role::kLosses, draft_.whole(shared_.losses_host))};
  if (policy_.updates_wait_for_norm) {
    op.writes = {as(Role::kScalars, draft_.whole(shared_.scalars))};
  }
  main_op(std::move(op), Stage{});
  if (policy_.updates_wait_for_norm) scalars_to_device();
}

void Lowering::step_scalars() {
  Op op{.kind = OpKind::kStepScalars, .lane = Lane::kUpdate};
  op.writes = {as(Role::kScalars, draft_.whole(shared_.scalars))};
  main_op(std::move(op), Stage{});
  scalars_to_device();
}

void Lowering::scalars_to_device() {
  if (shared_.scalars_device == kNoBuffer) return;
  Mover mover = Mover::store(draft_, stage_, labels(Stage{}, Account::kWorkspace));
  mover.copy(draft_.whole(shared_.scalars), draft_.whole(shared_.scalars_device));
}

void Lowering::update(const Stage& stage) {
  const std::int32_t unit = stage.unit;
  const Tier where = state_->tier(unit) == Tier::kDevice ? Tier::kDevice : Tier::kHost;
  const Range parameter_home = parameters_.chunk(unit, stage.chunk);
  const Range gradient =
      brought(labels(stage, Account::kGradients), stage.chunk, gradients_->chunk(unit, stage.chunk),
              where, finished_at_.at(unit) + 1);
  const Range state_home = state_->chunk(unit, stage.chunk);
  const Range state =
      brought(labels(stage, Account::kOptimizerState), stage.chunk, state_home, where);
  const Range parameter = updated_parameter(stage, parameter_home, where);

  Op op{.kind = OpKind::kUpdate, .lane = where == Tier::kDevice ? Lane::kCompute : Lane::kUpdate};
  const BufferId scalars = where == Tier::kDevice ? shared_.scalars_device : shared_.scalars;
  op.reads = {as(Role::kScalars, draft_.whole(scalars)), as(Role::kGradient, gradient),
              as(Role::kState, state)};
  const bool reads_parameter = model_.state_format.reads_parameter();
  if (reads_parameter) op.reads.push_back(as(Role::kParameters, parameter));
  op.writes = {as(Role::kState, state), as(Role::kParameters, parameter)};
  op.cost.bytes = static_cast<double>(gradient.size_bytes + 2 * state.size_bytes +
                                      (reads_parameter ? 2 : 1) * parameter.size_bytes);
  main_op(std::move(op), stage);

  store_back(stage, state, state_home, Account::kOptimizerState);
  store_back(stage, parameter, parameter_home, Account::kParameters);
  updated_at_.at(unit) = stage_;
}

Range Lowering::brought(const Mover::Labels& labels, std::int32_t chunk, const Range& home,
                        Tier where, std::int32_t earliest) {
  if (draft_.tier_of(home) == where) return home;
  Load load = new_load(earliest, home.size_bytes);
  load.target_tier = where;
  load.lane = where == Tier::kDevice
                  ? Lane::kUpload
                  : (draft_.tier_of(home) == Tier::kNvme ? Lane::kRead : Lane::kDownload);
  const bool two_hops = where == Tier::kDevice && draft_.tier_of(home) == Tier::kNvme;
  load.staging_bytes = two_hops ? home.size_bytes : 0;
  Mover mover = Mover::load(draft_, load, labels);
  return mover.bring(home, where, chunk);
}

Range Lowering::updated_parameter(const Stage& stage, const Range& home, Tier where) {
  if (draft_.tier_of(home) == where) return home;
  if (!model_.state_format.reads_parameter()) {
    const BufferId fresh =
        draft_.add_buffer(fmt::format("param[{}].{} updated", stage.unit, stage.chunk),
                          home.size_bytes, where, Account::kStaging, Life::kTransient);
    return {fresh, 0, home.size_bytes};
  }
  if (where == compute_) return updated_in_place(stage, home);
  const Range parameter = brought(labels_of_both(stage), stage.chunk, home, where);
  if (draft_.tier_of(home) == Tier::kNvme) updated_on_host_.at(stage.unit).push_back(parameter);
  return parameter;
}

Range Lowering::updated_in_place(const Stage& stage, const Range& home) {
  std::optional<Instance>& instance = instances_.at(stage.unit);
  if (!just_used(stage)) {
    const std::size_t use = next_use(stage.unit);
    if (use == uses_.at(stage.unit).size()) {
      return brought(labels(stage, Account::kParameters), stage.chunk, home, compute_);
    }
    if (stage.chunk == 0) instance = Instance{parameter_buffer(stage.unit), use};
    // Not ahead: its place may be in use until the end of the step before, and reads start in
    // order.
    Load load = new_load(stage_, stage.chunk == 0 ? unit_bytes(stage.unit) : 0);
    load.lane = Lane::kRead;
    Mover mover = Mover::load(draft_, load, labels_of_both(stage));
    mover.copy(home, {instance->buffer, offset_in_unit(stage), home.size_bytes}, stage.chunk);
  }
  return {instance->buffer, offset_in_unit(stage), home.size_bytes};
}

bool Lowering::just_used(const Stage& stage) const {
  const std::optional<Instance>& instance = instances_.at(stage.unit);
  return instance.has_value() && uses_.at(stage.unit).at(instance->use) == stage_ - 1 - stage.chunk;
}

void Lowering::store_back(const Stage& stage, const Range& range, const Range& home,
                          Account account) {
  if (range.buffer == home.buffer) return;
  Mover mover = Mover::store(draft_, stage_, labels(stage, account));
  mover.copy(range, home, stage.chunk);
}

}  // namespace terrace
