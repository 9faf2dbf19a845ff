#pragma once

#include "base/bytes.h"
#include "runtime/step/compile.h"

namespace terrace {

// A model of equal blocks for tests of the passes: sizes only.
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

// The same model as one of several ranks has it.
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
