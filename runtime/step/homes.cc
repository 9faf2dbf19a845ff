#include "runtime/step/homes.h"

#include <fmt/format.h>

#include <algorithm>

namespace terrace {

Homes::Homes(Draft& draft, const StepModel& model, const What& what, const std::vector<Tier>& tiers)
    : model_(model), what_(what), tiers_(tiers) {
  buffers_.resize(tiers.size());
  for (std::size_t u = 0; u < tiers.size(); ++u) {
    const auto unit = static_cast<std::int32_t>(u);
    const std::int64_t pieces = tiers[u] == Tier::kNvme ? model.chunks(unit) : 1;
    for (std::int64_t c = 0; c < pieces; ++c) {
      const std::size_t bytes =
          tiers[u] == Tier::kNvme
              ? chunk_bytes(unit, c)
              : static_cast<std::size_t>(model.units[u].padded_elements) * what.bytes_per_element;
      const std::string name = tiers[u] == Tier::kNvme ? fmt::format("{}[{}].{}", what.name, u, c)
                                                       : fmt::format("{}[{}]", what.name, u);
      const Life life = tiers[u] == Tier::kNvme ? Life::kPersistent : what.life;
      buffers_[u].push_back(draft.add_buffer(name, bytes, tiers[u], what.account, life));
    }
  }
}

std::size_t Homes::chunk_bytes(std::int32_t unit, std::int64_t chunk) const {
  return static_cast<std::size_t>(model_.chunk_size(unit, chunk)) * what_.bytes_per_element;
}

Range Homes::chunk(std::int32_t unit, std::int64_t chunk) const {
  const std::size_t bytes = chunk_bytes(unit, chunk);
  if (tiers_.at(unit) == Tier::kNvme) return {buffers_.at(unit).at(chunk), 0, bytes};
  const auto begin = static_cast<std::size_t>(chunk * model_.chunk_elements);
  return {buffers_.at(unit).front(), begin * what_.bytes_per_element, bytes};
}

Range Homes::unit(std::int32_t unit) const {
  TERRACE_CHECK(tiers_.at(unit) != Tier::kNvme);
  const auto elements = static_cast<std::size_t>(model_.units.at(unit).padded_elements);
  return {buffers_.at(unit).front(), 0, elements * what_.bytes_per_element};
}

namespace {

bool any_home_on_device(const StepPolicy& policy, Tier UnitHomes::* state) {
  return !policy.unified &&
         std::any_of(policy.homes.begin(), policy.homes.end(),
                     [state](const UnitHomes& homes) { return homes.*state == Tier::kDevice; });
}

}  // namespace

SharedBuffers add_shared_buffers(Draft& draft, const StepModel& model, const StepPolicy& policy) {
  const auto add = [&draft](const char* name, std::size_t bytes, Tier tier) {
    return draft.add_buffer(name, bytes, tier, Account::kWorkspace, Life::kPersistent);
  };
  const Tier compute = policy.compute_tier();
  const auto micro_batches = static_cast<std::size_t>(policy.micro_batches);
  SharedBuffers shared;
  shared.tokens = add("tokens", model.tokens_bytes * micro_batches, compute);
  if (model.constants_bytes != 0) {
    shared.constants = add("rope table", model.constants_bytes, compute);
  }
  if (model.workspace_bytes != 0) {
    shared.workspace = add("workspace", model.workspace_bytes, compute);
  }
  shared.losses = add("losses", micro_batches * sizeof(double), compute);
  shared.losses_host = policy.unified
                           ? shared.losses
                           : add("losses on host", micro_batches * sizeof(double), Tier::kHost);
  if (!policy.has_backward) return shared;
  const std::size_t partial_bytes = static_cast<std::size_t>(model.partials()) * sizeof(double);
  shared.partials = add("norm partials", partial_bytes, Tier::kHost);
  if (any_home_on_device(policy, &UnitHomes::gradients)) {
    shared.partials_device = add("norm partials on device", partial_bytes, Tier::kDevice);
  }
  shared.scalars = add("step scalars", 64, Tier::kHost);
  if (any_home_on_device(policy, &UnitHomes::optimizer)) {
    shared.scalars_device = add("step scalars on device", 64, Tier::kDevice);
  }
  return shared;
}

}  // namespace terrace
