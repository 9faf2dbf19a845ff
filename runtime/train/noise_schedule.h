#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "optim/gradient_noise.h"
#include "runtime/checkpoint/noise_record.h"
#include "runtime/config/train_options.h"
#include "runtime/step/lane_executor.h"

// The gradient noise scale of a run, and --accumulation-schedule auto, which chooses the number of
// micro-batches by it. All of it is computed from the results of steps, which have the same bits in
// every tier and order. So the numbers of micro-batches are the same there too.
namespace terrace {

// The gradient noise in a row of metrics.jsonl.
struct NoiseFigures {
  std::optional<GradientNoise> of_step;       // none where the step has no estimate
  std::optional<double> scale;                // in samples; none where it is not known
  std::optional<std::int64_t> micro_batches;  // that the step had, where the noise chooses them
};

// Returns the estimate of a step of `samples` samples, over all ranks; none if the step has no
// small batch, or if its numbers are not finite.
std::optional<GradientNoise> noise_of_step(const StepResult& result, std::int64_t samples);

// Steps whose number is a multiple of this one decide on the number of micro-batches.
inline constexpr std::int64_t kStepsPerDecision = 16;
// A decision counts from this number of steps later on, because the next step is already under way.
inline constexpr std::int64_t kDecisionDelay = 2;

// Returns the phase that a run begins with: the least number of micro-batches with two sizes of
// batch in a step. With one data-parallel rank that is 2, else 1.
AccumulationPhase first_phase(const BatchOptions& batch, std::int64_t data_ranks);
// Called after each step. Where a decision is due, and the gradient noise scale exceeds the samples
// of a step, it adds a phase with twice the micro-batches to the schedule, or with the largest
// number that the options allow. `samples`: of a micro-batch on all data-parallel ranks.
void choose_next_phase(std::int64_t step, const GradientNoiseState& noise, std::int64_t samples,
                       BatchOptions& batch);

// Returns what a checkpoint keeps.
NoiseRecord noise_record(const GradientNoiseState& noise, const BatchOptions& batch);
// Continues with the phases of a checkpoint, as far as the options allow their numbers. Does
// nothing if there are none.
void take_phases(const std::vector<NoiseRecord::Phase>& phases, BatchOptions& batch);

}  // namespace terrace
