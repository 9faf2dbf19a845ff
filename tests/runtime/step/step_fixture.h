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
  if (tied) reads.push_back({Role::kTiedParameters});
  unit.forward = {whole_step(reads, {{Role::kLosses}}, unit.backward_flops / 3)};
  std::vector<UnitAccess> writes = {{Role::kLosses}, {Role::kHiddenGradientOut}, {Role::kGradient}};
  if (tied) writes.push_back({Role::kTiedGradient});
  reads.push_back({Role::kLossScale});
  unit.backward = {whole_step(reads, writes, unit.backward_flops)};
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
  model.tied = tied;
  model.chunk_elements = 4 * kBlockElements;
  model.hidden_bytes = 64 * kKiB;
  model.tokens_bytes = 4 * kKiB;
  model.constants_bytes = 8 * kKiB;
  model.workspace_bytes = 100 * kKiB;
  model.units.push_back({UnitKind::kEmbedding, 9 * kBlockElements, 0, 1e6, 2e6});
  for (std::int64_t b = 0; b < blocks; ++b) {
    model.units.push_back({UnitKind::kBlock, 6 * kBlockElements, 200 * kKiB, 4e6, 8e6});
  }
  model.units.push_back(
      {UnitKind::kHead, tied ? kBlockElements : 10 * kBlockElements, 0, 1e6, 3e6});
  for (UnitModel& unit : model.units) add_whole_steps(unit, tied);
  return model;
}

// Returns the same model as one of several ranks has it.
inline StepModel divided(StepModel model, const ZeroSharding& zero) {
  const std::int64_t grain = zero.ranks * kBlockElements;
  const auto up = [grain](std::int64_t elements) { return (elements + grain - 1) / grain * grain; };
  for (UnitModel& unit : model.units) unit.padded_elements = up(unit.padded_elements);
  model.chunk_elements = up(model.chunk_elements);
  model.zero = zero;
  return model;
}

inline StepPolicy uniform_policy(const StepModel& model, const UnitHomes& homes) {
  StepPolicy policy;
  policy.unified = false;
  policy.homes.assign(model.unit_count(), homes);
  return policy;
}

}  // namespace terrace
