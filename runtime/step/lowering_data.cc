#include <algorithm>
#include <utility>

#include "runtime/step/lowering.h"

namespace terrace {
Range Lowering::parameters_for(std::int32_t unit) {
  if (parameters_.tier(unit) == compute_ && !parameters_.is_sharded(unit)) {
    return parameters_.unit(unit);
  }
  const std::size_t use = next_use(unit);
  std::optional<Instance>& instance = instances_.at(unit);
  if (!instance.has_value() || (instance->use != use && !stays(unit, use))) {
    instance = Instance{load_parameters(unit, use), use};
  }
  instance->use = use;
  return {instance->buffer, 0, unit_bytes(unit)};
}

std::size_t Lowering::next_use(std::int32_t unit) const {
  const auto& uses = uses_.at(unit);
  return static_cast<std::size_t>(std::lower_bound(uses.begin(), uses.end(), now_) - uses.begin());
}

BufferId Lowering::parameter_buffer(std::int32_t unit) {
  return draft_.add_buffer(draft_.name("param[{}] at {}", unit, now_), unit_bytes(unit), compute_,
                           Account::kParameters, Life::kTransient);
}

bool Lowering::stays(std::int32_t unit, std::size_t use) const {
  return uses_[unit][use] - uses_[unit][use - 1] <= 1;
}

std::size_t Lowering::unit_bytes(std::int32_t unit) const {
  return static_cast<std::size_t>(model_.units.at(unit).padded_elements) * model_.parameter_bytes();
}

BufferId Lowering::load_parameters(std::int32_t unit, std::size_t use) {
  const BufferId arrived = parameter_buffer(unit);
  const std::vector<Range> updated = std::exchange(updated_on_host_.at(unit), {});
  const bool two_hops = compute_ == Tier::kDevice && parameters_.tier(unit) == Tier::kNvme &&
                        std::ssize(updated) < model_.chunks(unit);
  Load load = new_load(updated_at_.at(unit) + 1, unit_bytes(unit));
  load.staging_bytes = two_hops ? 2 * parameters_.chunk_bytes(unit, 0) : 0;
  load.target = arrived;
  load.unit = unit;
  load.use = use;
  if (instances_.at(unit).has_value()) load.before = instances_.at(unit)->buffer;
  Mover mover = Mover::load(draft_, load, {unit, -1, kOfThisStep, Account::kParameters});
  for (std::int32_t c = 0; c < static_cast<std::int32_t>(model_.chunks(unit)); ++c) {
    const std::size_t width = model_.parameter_bytes();
    const Range target{arrived, static_cast<std::size_t>(model_.chunk_begin(unit, c)) * width,
                       static_cast<std::size_t>(model_.chunk_size(unit, c)) * width};
    const Range source = c < std::ssize(updated) ? updated[c] : parameters_.chunk(unit, c);
    if (!parameters_.is_sharded(unit)) {
      mover.copy(source, target, c);
    } else if (draft_.tier_of(source) == compute_) {
      gather(mover, source, target, c);
    } else {
      mover.copy(source, own_shard(target), c);
      gather(mover, own_shard(target), target, c);
    }
    mover.next_chunk();
  }
  return arrived;
}

Load Lowering::new_load(std::int32_t earliest, std::size_t target_bytes) const {
  Load load;
  load.need_task = now_;
  load.earliest_task = std::min(earliest, now_);
  load.target_tier = compute_;
  load.target_bytes = target_bytes;
  return load;
}

Tier Lowering::home_of_activations(std::int32_t unit) const {
  const Tier home = policy_.homes.at(unit)[StateClass::kActivations];
  return home == Tier::kDevice ? compute_ : home;
}

BufferId Lowering::hidden_buffer(const char* what, std::int32_t forward) {
  const Task& producer = tasks_.at(index(producer_.at(index(forward))));
  return draft_.add_buffer(draft_.name("{}[{}] mb {}", what, producer.unit, producer.micro_batch),
                           model_.hidden_bytes, compute_, Account::kActivations, Life::kTransient);
}

BufferId Lowering::saved_buffer(const Task& task) {
  return draft_.add_buffer(draft_.name("saved[{}] mb {}", task.unit, task.micro_batch),
                           model_.units.at(task.unit).saved_bytes, compute_, Account::kActivations,
                           Life::kTransient);
}

bool Lowering::needs_input_again(std::int32_t unit) const {
  const UnitModel& model = model_.units.at(unit);
  for (const auto* steps : {&model.recompute, &model.backward}) {
    if (steps == &model.recompute && !policy_.homes.at(unit).recompute) continue;
    for (const UnitStep& step : *steps) {
      const auto found = std::ranges::find(step.reads, Role::kHidden, &UnitAccess::role);
      if (found != step.reads.end()) return true;
    }
  }
  return false;
}

std::optional<std::int32_t> Lowering::needed_again(const Task& task) const {
  const std::int32_t again = again_at_.at(index(task.forward));
  return again < 0 ? std::nullopt : std::optional(again);
}

void Lowering::send_away(Activation& activation, const BufferKey& key, const Task& task) {
  const Tier home = home_of_activations(task.unit);
  if (home == compute_ || *needed_again(task) - now_ <= short_gap(task.unit)) return;
  const Buffer memory = draft_.buffers.at(activation.memory);
  const BufferId away =
      draft_.add_buffer({.name = draft_.name("{} away", memory.name),
                         .key = key,
                         .size_bytes = memory.size_bytes,
                         .tier = home,
                         .account = Account::kActivations,
                         .life = home == Tier::kNvme ? Life::kPersistent : Life::kTransient});
  Mover mover = Mover::store(draft_, now_, labels(task, Account::kActivations));
  mover.copy(draft_.whole(activation.memory), draft_.whole(away));
  release_slot(hidden_slots_, activation.memory);
  activation = Activation{kNoBuffer, draft_.whole(away), now_};
}

Range Lowering::brought_back(Activation& activation, const Task& task) {
  if (activation.away.has_value()) {
    const Range away = *activation.away;
    const BufferId back =
        draft_.add_buffer(draft_.name("{} and back", draft_.buffers.at(away.buffer).name),
                          away.size_bytes, compute_, Account::kActivations, Life::kTransient);
    Load load = new_load(activation.away_since + 1, away.size_bytes);
    const bool two_hops = compute_ == Tier::kDevice && draft_.tier_of(away) == Tier::kNvme;
    load.staging_bytes = two_hops ? away.size_bytes : 0;
    Mover mover = Mover::load(draft_, load, labels(task, Account::kActivations));
    mover.copy(away, draft_.whole(back));
    activation = Activation{back, std::nullopt, 0};
  }
  return draft_.whole(activation.memory);
}

}  // namespace terrace
