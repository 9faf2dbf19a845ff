#include "runtime/train/evaluation.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace terrace {

std::int64_t default_evaluation_samples(std::int64_t samples_per_step) {
  constexpr std::int64_t kLeast = 16;
  constexpr std::int64_t kSteps = 20;
  return std::max(kLeast, kSteps * kForwardsOfTraining * samples_per_step);
}

std::int64_t evaluation_samples(std::int64_t asked, std::int64_t windows) {
  return asked == 0 ? windows : std::min(asked, windows);
}

std::optional<double> evaluate(const EvaluationSetting& setting, std::int64_t step) {
  RankSamples& samples = setting.samples;
  const RankGroup& ranks = setting.ranks;
  const std::int64_t count = samples.evaluated();
  ConsolePhase phase(setting.console, fmt::format("evaluating {} samples", count));
  RankSamples::Validation batch;
  double sum = 0;
  std::int64_t counted = 0;
  // All ranks take part to the end, also those that have no samples left.
  for (std::int64_t first = 0; first < count; first += samples.share().of_step()) {
    samples.fill_validation(first, batch);
    if (ranks.steps().has_losses()) counted += batch.counted_targets;
    sum += ranks.sum(setting.engine.evaluate(batch.tokens));
    if (ranks.any(setting.stop.is_made() || samples.has_problem())) {
      setting.log.warning(fmt::format("the evaluation after step {} was given up{}", step,
                                      setting.stop.is_made() ? " on a signal" : ""));
      return std::nullopt;
    }
    phase.advance(std::min(first + samples.share().of_step(), count), count);
  }
  return sum / ranks.sum(static_cast<double>(counted));
}

void check_validation_loss(const std::optional<double>& loss, std::int64_t step) {
  if (std::isfinite(loss.value_or(0))) return;
  throw NotFinite(fmt::format("step {}: the validation loss is not a number", step),
                  "lower --learning-rate; what was saved before is untouched");
}

}  // namespace terrace
