#include "runtime/step/homes.h"

#include <fmt/format.h>

#include <algorithm>

namespace terrace {

Homes::Homes(Draft& draft, const StepModel& model, const What& what, const std::vector<Tier>& tiers)
    : model_(model), what_(what), tiers_(tiers) {
  buffers_.resize(tiers.size());
  begins_.resize(tiers.size());
  for (std::size_t u = 0; u < tiers.size(); ++u) {
    const auto unit = static_cast<std::int32_t>(u);
    if (!what.has(unit)) continue;
    begins_[u].push_back(0);
    for (std::int64_t c = 0; c < what.chunks(unit); ++c) {
      begins_[u].push_back(begins_[u].back() + chunk_bytes(unit, c));
    }
    Buffer home{.name = fmt::format("{}[{}]", what.name, u),
                .key = {what.kind, unit},
                .size_bytes = 0,
                .tier = tiers[u],
                .account = what.account};
    if (tiers[u] != Tier::kNvme) {
      home.size_bytes = unit_bytes(unit);
      home.life = what.life_of(unit);
      buffers_[u].push_back(draft.add_buffer(home));
      continue;
    }
    for (std::int64_t c = 0; c < what.chunks(unit); ++c) {
      Buffer extent = home;
      extent.name += fmt::format(".{}", c);
      extent.key.number = c;
      extent.size_bytes = chunk_bytes(unit, c);
      extent.life = Life::kPersistent;
      buffers_[u].push_back(draft.add_buffer(extent));
    }
  }
}

std::size_t Homes::chunk_bytes(std::int32_t unit, std::int64_t chunk) const {
  return what_.bytes_of(what_.part_of(unit, chunk).count);
}

bool Homes::is_sharded(std::int32_t unit) const {
  return what_.part_of(unit, 0).count != model_.chunk_size(unit, 0);
}

std::size_t Homes::unit_bytes(std::int32_t unit) const { return begins_.at(unit).back(); }

Range Homes::chunk(std::int32_t unit, std::int64_t chunk) const {
  const std::size_t bytes = chunk_bytes(unit, chunk);
  if (tiers_.at(unit) == Tier::kNvme) return {buffers_.at(unit).at(chunk), 0, bytes};
  return {buffers_.at(unit).front(), begins_.at(unit).at(chunk), bytes};
}

Range Homes::unit(std::int32_t unit) const {
  TERRACE_CHECK(tiers_.at(unit) != Tier::kNvme);
  return {buffers_.at(unit).front(), 0, unit_bytes(unit)};
}

namespace {

std::vector<Tier> tiers_of(const StepPolicy& policy, Tier UnitHomes::* state) {
  std::vector<Tier> tiers;
  for (const UnitHomes& homes : policy.homes) {
    const Tier tier = homes.*state;
    tiers.push_back(tier == Tier::kDevice ? policy.compute_tier() : tier);
  }
  return tiers;
}

std::function<std::size_t(std::int64_t)> times(std::size_t bytes_per_element) {
  return
      [=](std::int64_t elements) { return static_cast<std::size_t>(elements) * bytes_per_element; };
}

Life always(std::int32_t /*unit*/) { return Life::kPersistent; }

}  // namespace

Homes parameter_homes(Draft& draft, const StepModel& model, const StepPolicy& policy) {
  const auto has = [&model](std::int32_t unit) { return model.has_parameters(unit); };
  const auto chunks = [&model](std::int32_t unit) { return model.chunks(unit); };
  const auto part_of = [&model](std::int32_t unit, std::int64_t chunk) {
    return model.parameter_home(unit, chunk);
  };
  const Homes::What what = {.name = "param",
                            .kind = BufferKind::kParameters,
                            .account = Account::kParameters,
                            .has = has,
                            .chunks = chunks,
                            .life_of = always,
                            .part_of = part_of,
                            .bytes_of = times(model.parameter_bytes())};
  return Homes(draft, model, what, tiers_of(policy, &UnitHomes::parameters));
}

Homes gradient_homes(Draft& draft, const StepModel& model, const StepPolicy& policy) {
  const auto has = [&model](std::int32_t unit) {
    return model.has_unit(unit) && model.trains(unit);
  };
  const auto chunks = [&model](std::int32_t unit) { return model.trained_chunks(unit); };
  // Used up by the update: in the next step, or at once.
  const auto life_of = [&policy](std::int32_t unit) {
    return policy.defers_update(unit) ? Life::kCarried : Life::kTransient;
  };
  std::vector<Tier> tiers = tiers_of(policy, &UnitHomes::gradients);
  for (std::int32_t u = 0; u < static_cast<std::int32_t>(tiers.size()); ++u) {
    if (tiers[u] == Tier::kNvme) tiers[u] = policy.gradient_home(u);
  }
  // Stage 1 has whole gradients where they are computed; further on only the shard has a use.
  const auto part_of = [&model, tiers, compute = policy.compute_tier()](std::int32_t unit,
                                                                        std::int64_t chunk) {
    const bool is_sharded =
        model.zero.of_gradients() || (model.zero.of_optimizer() && tiers.at(unit) != compute);
    return is_sharded ? model.shard(unit, chunk, model.zero.rank) : model.whole(unit, chunk);
  };
  const Homes::What what = {.name = "grad",
                            .kind = BufferKind::kGradients,
                            .account = Account::kGradients,
                            .has = has,
                            .chunks = chunks,
                            .life_of = life_of,
                            .part_of = part_of,
                            .bytes_of = times(size_of(model.gradient_type))};
  return Homes(draft, model, what, tiers);
}

Homes optimizer_homes(Draft& draft, const StepModel& model, const StepPolicy& policy) {
  const auto has = [&model](std::int32_t unit) {
    return model.has_unit(unit) && model.trains(unit);
  };
  const auto chunks = [&model](std::int32_t unit) { return model.trained_chunks(unit); };
  const auto part_of = [&model](std::int32_t unit, std::int64_t chunk) {
    return model.state_home(unit, chunk);
  };
  const auto bytes_of = [format = model.state_format](std::int64_t elements) {
    return format.bytes(elements);
  };
  const Homes::What what = {.name = "state",
                            .kind = BufferKind::kState,
                            .account = Account::kOptimizerState,
                            .has = has,
                            .chunks = chunks,
                            .life_of = always,
                            .part_of = part_of,
                            .bytes_of = bytes_of};
  return Homes(draft, model, what, tiers_of(policy, &UnitHomes::optimizer));
}

namespace {

bool any_gradient_on_device(const StepPolicy& policy) {
  return !policy.unified && std::ranges::any_of(policy.homes, [](const UnitHomes& homes) {
    return homes.gradients == Tier::kDevice;
  });
}

bool any_update_on_device(const StepPolicy& policy) {
  for (std::int32_t u = 0; u < static_cast<std::int32_t>(policy.homes.size()); ++u) {
    if (policy.update_tier(u) == Tier::kDevice) return true;
  }
  return false;
}

}  // namespace

std::size_t sums_bytes_of_rank(const StepModel& model, std::int32_t micro_batches) {
  const std::int64_t partials = model.gathers_partials() ? model.most_partials() : 0;
  return static_cast<std::size_t>(partials + micro_batches) * sizeof(double);
}

SharedBuffers add_shared_buffers(Draft& draft, const StepModel& model, const StepPolicy& policy) {
  const auto add = [&draft](BufferKind kind, const char* name, std::size_t bytes, Tier tier) {
    return draft.add_buffer({.name = name,
                             .key = {kind},
                             .size_bytes = bytes,
                             .tier = tier,
                             .account = Account::kWorkspace,
                             .life = Life::kPersistent});
  };
  const Tier compute = policy.compute_tier();
  const auto micro_batches = static_cast<std::size_t>(policy.micro_batches);
  SharedBuffers shared;
  shared.tokens = add(BufferKind::kTokens, "tokens", model.tokens_bytes * micro_batches, compute);
  if (model.constants_bytes != 0) {
    shared.constants = add(BufferKind::kConstants, "rope table", model.constants_bytes, compute);
  }
  if (model.workspace_bytes != 0) {
    shared.workspace = add(BufferKind::kWorkspace, "workspace", model.workspace_bytes, compute);
  }
  shared.losses = add(BufferKind::kLosses, "losses", micro_batches * sizeof(double), compute);
  shared.losses_host = shared.losses;
  if (!policy.unified) {
    shared.losses_host = add(BufferKind::kLossesOnHost, "losses on host",
                             micro_batches * sizeof(double), Tier::kHost);
  }
  if (!policy.has_backward) return shared;
  const std::size_t partial_bytes = static_cast<std::size_t>(model.partials()) * sizeof(double);
  if (partial_bytes != 0) {
    shared.partials = add(BufferKind::kNormPartials, "norm partials", partial_bytes, Tier::kHost);
  }
  if (partial_bytes != 0 && any_gradient_on_device(policy)) {
    shared.partials_device = add(BufferKind::kNormPartialsOnDevice, "norm partials on device",
                                 partial_bytes, Tier::kDevice);
  }
  if (model.ranks() > 1) {
    shared.sums = add(BufferKind::kSumsOfRanks, "sums of all ranks",
                      sums_bytes_of_rank(model, policy.micro_batches) * model.ranks(), Tier::kHost);
  }
  shared.scalars = add(BufferKind::kStepScalars, "step scalars", 64, Tier::kHost);
  if (model.scales_loss) {
    shared.loss_scale = add(BufferKind::kLossScale, "loss scale", 64, Tier::kHost);
  }
  if (any_update_on_device(policy)) {
    shared.scalars_device =
        add(BufferKind::kStepScalarsOnDevice, "step scalars on device", 64, Tier::kDevice);
  }
  return shared;
}

}  // namespace terrace
