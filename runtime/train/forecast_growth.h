#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "parallel/pipeline_schedule.h"
#include "runtime/train/run_forecast.h"

// Forecasts of a pipeline's step with very many micro-batches, from two shorter steps.
//
// With 1F1B, plain or interleaved, a stage first fills the pipeline, then does one forward and one
// backward for each further micro-batch, and then empties the pipeline. The first and the last part
// do not depend on the number of micro-batches (parallel/pipeline_schedule.h). If a step moves
// nothing between tiers, each further micro-batch therefore adds the same time, bytes and FLOPs,
// and two steps give the line. This is exact where all stages take equally long. A stage that is
// slower than the others may only show in steps that are longer than the two: then the time is at
// least the slowest stage's work, and the error is at most the time to fill the pipeline.
//
// GPipe holds the activations of all micro-batches. Where states or activations move between tiers,
// the planner's choices may depend on the number of micro-batches, and a drive may limit short
// steps but not long ones. Both are planned whole.
namespace terrace {

// The micro-batches of the two shorter steps.
using ShorterSteps = std::array<std::int32_t, 2>;

// Returns the two shorter steps to plan in place of a step, if this would be much less work.
std::optional<ShorterSteps> shorter_steps(const PipelineShape& shape);

// The plans of both shorter steps, and the micro-batches of the whole one.
struct StepGrowth {
  ShorterSteps steps = {};
  std::int32_t micro_batches = 0;
};

// Returns whether the plans of both shorter steps give the forecast of the whole one: nothing moves
// between tiers, both recompute alike, and the whole step keeps its budgets.
bool can_grow(const PlannedStages& shorter, const PlannedStages& longer, const StepGrowth& growth);

// Returns the forecast of the whole step. can_grow() must hold for the plans.
RunForecast grow_forecast(const RunForecast& shorter, const RunForecast& longer,
                          const StepGrowth& growth);

}  // namespace terrace
