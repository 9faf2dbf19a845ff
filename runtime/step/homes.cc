#include "runtime/step/homes.h"

#include <algorithm>
#include <array>

#include "base/check.h"
#include "optim/update_rule.h"
#include "runtime/step/noise_sums.h"

namespace terrace {

namespace {

std::vector<Tier> home_tiers(const StepPolicy& policy, StateClass state) {
  std::vector<Tier> tiers;
  for (std::int32_t g = 0; g < static_cast<std::int32_t>(policy.homes.size()); ++g) {
    const Tier tier =
        state == StateClass::kGradients ? policy.gradient_home(g) : policy.home(state, g);
    tiers.push_back(tier == Tier::kDevice ? policy.compute_tier() : tier);
  }
  return tiers;
}

// Returns the number of parts of a chunk of which a rank has one at home in this tier. With ZeRO
// stage 1, gradients are whole in the tier where they are computed. In any other tier only the
// shard is of use.
std::int32_t parts_in(const StepModel& model, const StepPolicy& policy, StateClass state,
                      Tier tier) {
  const bool leaves_compute =
      state == StateClass::kGradients && model.zero.of_optimizer() && tier != policy.compute_tier();
  return leaves_compute && !model.zero.of(state) ? model.zero.ranks : model.zero.parts(state);
}

// Returns the life of a home in memory. Gradients are used up by the update, in the next step or at
// once.
Life life_in_memory(const StepPolicy& policy, StateClass state, std::int32_t group) {
  if (state != StateClass::kGradients) return Life::kPersistent;
  return policy.defers_update(group) ? Life::kCarried : Life::kTransient;
}

}  // namespace

const HomeNames& home_names(StateClass state) {
  static constexpr std::array<HomeNames, kStateClassCount> kNames = {{
      {"param", BufferKind::kParameters, Role::kParameters},
      {"grad", BufferKind::kGradients, Role::kGradient},
      {"state", BufferKind::kState, Role::kState},
      {"activations", BufferKind::kOther, Role::kSaved},  // per micro-batch: no such homes
      {"errors", BufferKind::kErrors, Role::kErrors},
  }};
  return kNames.at(static_cast<std::size_t>(state));
}

Homes::Homes(Draft& draft, const StepModel& model, const StepPolicy& policy, StateClass state)
    : model_(model),
      state_(state),
      tiers_(home_tiers(policy, state)),
      buffers_(tiers_.size()),
      begins_(tiers_.size()) {
  for (std::int32_t g = 0; g < static_cast<std::int32_t>(tiers_.size()); ++g) {
    const Tier tier = tiers_[g];
    parts_.push_back(parts_in(model, policy, state, tier));
    if (!model.has_home(state, g)) continue;
    add_group(draft,
              {.name = draft.name("{}[{}]", home_names(state).buffer, g),
               .key = {home_names(state).kind, g},
               .tier = tier,
               .account = info_of(state).account,
               .life = tier == Tier::kNvme ? Life::kPersistent : life_in_memory(policy, state, g)},
              g);
  }
}

void Homes::add_group(Draft& draft, const Buffer& home, std::int32_t group) {
  std::vector<std::size_t>& begins = begins_.at(group);
  begins.push_back(0);
  for (std::int64_t c = 0; c < model_.home_chunks(state_, group); ++c) {
    begins.push_back(begins.back() + chunk_bytes(group, c));
  }
  if (home.tier != Tier::kNvme) {
    Buffer whole = home;
    whole.size_bytes = group_bytes(group);
    buffers_.at(group).push_back(draft.add_buffer(whole));
    return;
  }
  for (std::int64_t c = 0; c < model_.home_chunks(state_, group); ++c) {
    Buffer extent = home;
    extent.name += draft.name(".{}", c);
    extent.key.number = c;
    extent.size_bytes = chunk_bytes(group, c);
    buffers_.at(group).push_back(draft.add_buffer(extent));
  }
}

std::size_t Homes::chunk_bytes(std::int32_t group, std::int64_t chunk) const {
  const std::int64_t elements = model_.chunk_size(group, chunk) / parts(group);
  return model_.state_bytes(state_, group, elements);
}

// Only the last trained chunk and the last frozen chunk may be smaller than the others.
std::size_t Homes::largest_chunk_bytes(std::int32_t group) const {
  const std::int64_t first_frozen = model_.trained_chunks(group);
  const bool has_frozen = first_frozen < model_.home_chunks(state_, group);
  return std::max(chunk_bytes(group, 0), has_frozen ? chunk_bytes(group, first_frozen) : 0);
}

std::size_t Homes::group_bytes(std::int32_t group) const { return begins_.at(group).back(); }

Range Homes::chunk(std::int32_t group, std::int64_t chunk) const {
  const std::size_t bytes = chunk_bytes(group, chunk);
  if (tiers_.at(group) == Tier::kNvme) return {buffers_.at(group).at(chunk), 0, bytes};
  return {buffers_.at(group).front(), begins_.at(group).at(chunk), bytes};
}

Range Homes::group(std::int32_t group) const {
  TERRACE_CHECK(tiers_.at(group) != Tier::kNvme);
  return {buffers_.at(group).front(), 0, group_bytes(group)};
}

namespace {

bool any_gradient_on_device(const StepPolicy& policy) {
  return !policy.unified && std::ranges::any_of(policy.homes, [](const GroupHomes& homes) {
    return homes.gradients == Tier::kDevice;
  });
}

bool any_update_on_device(const StepPolicy& policy) {
  for (std::int32_t g = 0; g < static_cast<std::int32_t>(policy.homes.size()); ++g) {
    if (policy.update_tier(g) == Tier::kDevice) return true;
  }
  return false;
}

}  // namespace

static_assert(sizeof(StepScalars) <= kScalarBytes, "a rule's scalars have this much room");

std::size_t sums_bytes_of_rank(const StepModel& model, std::int32_t micro_batches) {
  return loss_offset_in_sums(model, micro_batches) +
         static_cast<std::size_t>(micro_batches) * sizeof(double);
}

std::size_t router_offset_in_sums(const StepModel& model) {
  const std::int64_t partials = model.gathers_partials() ? model.most_partials() : 0;
  return static_cast<std::size_t>(partials) * sizeof(double);
}

std::size_t noise_offset_in_sums(const StepModel& model, std::int32_t micro_batches) {
  return router_offset_in_sums(model) +
         static_cast<std::size_t>(micro_batches * model.folded_router_sums()) * sizeof(double);
}

std::size_t loss_offset_in_sums(const StepModel& model, std::int32_t micro_batches) {
  return noise_offset_in_sums(model, micro_batches) + noise_sums_of_rank(model) * sizeof(double);
}

namespace {

void add_noise_partials(Draft& draft, const StepModel& model, const StepPolicy& policy,
                        SharedBuffers& shared) {
  if (noise_partials(model) == 0) return;
  Buffer partials{.name = "noise partials",
                  .key = {BufferKind::kNoisePartials},
                  .size_bytes = static_cast<std::size_t>(noise_partials(model)) * sizeof(double),
                  .tier = Tier::kHost,
                  .account = Account::kWorkspace,
                  .life = Life::kPersistent};
  shared.noise_partials = draft.add_buffer(partials);
  if (policy.unified) return;
  partials.name = "noise partials on device";
  partials.key = {BufferKind::kNoisePartialsOnDevice};
  partials.tier = Tier::kDevice;
  shared.noise_partials_device = draft.add_buffer(partials);
}

}  // namespace

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
  if (model.tokens_bytes != 0) {
    shared.tokens = add(BufferKind::kTokens, "tokens", model.tokens_bytes * micro_batches, compute);
  }
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
  const auto router_bytes =
      static_cast<std::size_t>(policy.micro_batches * model.router_layers() * model.router_sums) *
      sizeof(double);
  if (model.has_router_sums()) {
    shared.router_sums = add(BufferKind::kRouterSums, "router sums", router_bytes, compute);
    shared.router_sums_host = shared.router_sums;
  }
  if (model.has_router_sums() && !policy.unified) {
    shared.router_sums_host =
        add(BufferKind::kRouterSumsOnHost, "router sums on host", router_bytes, Tier::kHost);
  }
  const std::size_t partial_bytes = static_cast<std::size_t>(model.partials()) * sizeof(double);
  if (partial_bytes != 0) {
    shared.partials = add(BufferKind::kNormPartials, "norm partials", partial_bytes, Tier::kHost);
  }
  if (partial_bytes != 0 && any_gradient_on_device(policy)) {
    shared.partials_device = add(BufferKind::kNormPartialsOnDevice, "norm partials on device",
                                 partial_bytes, Tier::kDevice);
  }
  add_noise_partials(draft, model, policy, shared);
  if (model.ranks() > 1) {
    shared.sums = add(BufferKind::kSumsOfRanks, "sums of all ranks",
                      sums_bytes_of_rank(model, policy.micro_batches) * model.ranks(), Tier::kHost);
  }
  const std::size_t scalar_bytes = kScalarBytes * static_cast<std::size_t>(model.rules());
  shared.scalars = add(BufferKind::kStepScalars, "step scalars", scalar_bytes, Tier::kHost);
  if (model.scales_loss) {
    shared.loss_scale = add(BufferKind::kLossScale, "loss scale", 64, Tier::kHost);
  }
  if (any_update_on_device(policy)) {
    shared.scalars_device = add(BufferKind::kStepScalarsOnDevice, "step scalars on device",
                                scalar_bytes, Tier::kDevice);
  }
  return shared;
}

}  // namespace terrace
