#include "runtime/train/noise_schedule.h"

#include <algorithm>
#include <cmath>

namespace terrace {

// Small batches are counted in samples of the step's mean number of counted tokens.
std::optional<GradientNoise> noise_of_step(const StepResult& result, std::int64_t samples) {
  if (!result.small_batch || result.was_skipped) return std::nullopt;
  const SmallBatch& small = *result.small_batch;
  const auto all = static_cast<double>(samples);
  const GradientNoise noise =
      estimate_gradient_noise({small.squared_norm, small.tokens / small.tokens_of_step * all},
                              {result.gradient_norm * result.gradient_norm, all});
  const bool is_finite = std::isfinite(noise.squared_norm) && std::isfinite(noise.variance);
  return is_finite ? std::optional(noise) : std::nullopt;
}

AccumulationPhase first_phase(const BatchOptions& batch, std::int64_t data_ranks) {
  const std::int64_t least = data_ranks > 1 ? 1 : 2;
  return {.micro_batches = std::min(least, batch.gradient_accumulation_steps), .first_step = 1};
}

void choose_next_phase(std::int64_t step, const GradientNoiseState& noise, std::int64_t samples,
                       BatchOptions& batch) {
  const std::int64_t now = batch.accumulation_schedule.back().micro_batches;
  const std::int64_t most = batch.gradient_accumulation_steps;
  if (step % kStepsPerDecision != 0 || noise.steps == 0 || now >= most) return;
  if (!exceeds_samples(noise, static_cast<double>(now * samples))) return;
  batch.accumulation_schedule.push_back(
      {.micro_batches = std::min(2 * now, most), .first_step = step + kDecisionDelay});
}

NoiseRecord noise_record(const GradientNoiseState& noise, const BatchOptions& batch) {
  NoiseRecord record = {.noise = noise, .phases = {}};
  if (!batch.adapts_accumulation) return record;
  for (const auto& [micro_batches, first_step] : batch.accumulation_schedule) {
    record.phases.push_back({micro_batches, first_step});
  }
  return record;
}

void take_phases(const std::vector<NoiseRecord::Phase>& phases, BatchOptions& batch) {
  if (phases.empty()) return;
  batch.accumulation_schedule.clear();
  for (const auto& [micro_batches, first_step] : phases) {
    batch.accumulation_schedule.push_back(
        {std::min(micro_batches, batch.gradient_accumulation_steps), first_step});
  }
}

}  // namespace terrace
