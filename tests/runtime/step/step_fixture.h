#pragma once

#include <utility>
#include <vector>

#include "base/bytes.h"
#include "runtime/step/compile.h"

namespace terrace {

inline UnitStep whole_step(std::vector<UnitAccess> reads, std::vector<UnitAccess> writes,
                           double flops) {
  return {.reads = std::move(reads), .writes = std::move(writes), .flops = flops};
}

inline void add_head_steps(UnitModel& unit, bool tied) {
  std::vector<UnitAccess> reads = {{Role::kHidden}, {Role::kTokens}};
  unit.forward = {whole_step(reads, {{Role::kLosses}}, unit.backward_flops / 3)};
  std::vector<UnitAccess> writes = {{Role::kLosses}, {Role::kHiddenGradientOut}, {Role::kGradient}};
  reads.push_back({Role::kLossScale});
  if (tied) writes.push_back({Role::kGradient, 1});
  unit.backward = {whole_step(reads, writes, unit.backward_flops)};
  if (tied) unit.forward.front().groups = unit.backward.front().groups = {0, 1};
}

// Gives a unit that is described only by its sizes its ops: one for each pass.
inline void add_whole_steps(UnitModel& unit, bool tied) {
  if (unit.kind == UnitKind::kHead) return add_head_steps(unit, tied);
  if (unit.kind == UnitKind::kEmbedding) {
    unit.forward = {whole_step({{Role::kTokens}}, {{Role::kHiddenOut}}, unit.forward_flops)};
    return;
  }
  unit.forward = {
      whole_step({{Role::kHidden}}, {{Role::kHiddenOut}, {Role::kSaved}}, unit.forward_flops)};
  unit.recompute = {whole_step({{Role::kHidden}}, {{Role::kSaved}}, unit.forward_flops)};
  unit.backward = {whole_step({{Role::kHidden}, {Role::kSaved}, {Role::kHiddenGradient}},
                              {{Role::kHiddenGradientOut}, {Role::kGradient}},
                              unit.backward_flops)};
}

// Returns a model of equal blocks for tests of the passes. It has sizes only.
inline StepModel small_step_model(std::int64_t blocks, bool tied) {
  StepModel model;
  model.chunk_elements = 4 * kBlockElements;
  model.hidden_bytes = 64 * kKiB;
  model.tokens_bytes = 4 * kKiB;
  model.constants_bytes = 8 * kKiB;
  model.workspace_bytes = 100 * kKiB;
  model.add({.kind = UnitKind::kEmbedding, .forward_flops = 1e6, .backward_flops = 2e6},
            {.padded_elements = 9 * kBlockElements});
  for (std::int64_t b = 0; b < blocks; ++b) {
    model.add({.saved_bytes = 200 * kKiB, .forward_flops = 4e6, .backward_flops = 8e6},
              {.padded_elements = 6 * kBlockElements});
  }
  model.add({.kind = UnitKind::kHead, .forward_flops = 1e6, .backward_flops = 3e6},
            {.padded_elements = tied ? kBlockElements : 10 * kBlockElements});
  if (tied) model.units.back().groups.push_back(0);
  for (UnitModel& unit : model.units) add_whole_steps(unit, tied);
  return model;
}

// Returns the same model as one of several ranks has it.
inline StepModel divided(StepModel model, const ZeroSharding& zero) {
  const std::int64_t grain = zero.ranks * kBlockElements;
  const auto up = [grain](std::int64_t elements) { return (elements + grain - 1) / grain * grain; };
  for (ParameterGroup& group : model.groups) group.padded_elements = up(group.padded_elements);
  model.chunk_elements = up(model.chunk_elements);
  model.zero = zero;
  return model;
}

// Where all states of a unit with one group live.
struct AllHomes {
  Tier parameters = Tier::kHost;
  Tier gradients = Tier::kHost;
  Tier optimizer = Tier::kHost;
  Tier activations = Tier::kHost;
  bool recompute = false;
};

inline GroupHomes group_homes(const AllHomes& homes) {
  return {
      .parameters = homes.parameters, .gradients = homes.gradients, .optimizer = homes.optimizer};
}

inline UnitActivations activations_of(const AllHomes& homes) {
  return {.home = homes.activations, .recompute = homes.recompute};
}

// Adds the homes of the next unit, which has one group. The updates of as many first units as usual
// are deferred.
inline void add_homes(StepPolicy& policy, const AllHomes& homes) {
  const bool is_first = policy.homes.size() < static_cast<std::size_t>(kUsualDeferredUnits);
  policy.homes.push_back(group_homes(homes));
  policy.homes.back().defers_update = is_first;
  policy.activations.push_back(activations_of(homes));
}

inline StepPolicy uniform_policy(const StepModel& model, const AllHomes& homes) {
  StepPolicy policy;
  policy.unified = false;
  for (std::size_t u = 0; u < model.unit_count(); ++u) add_homes(policy, homes);
  return policy;
}

}  // namespace terrace
