#include "runtime/train/evaluation.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <span>

#include "base/error.h"
#include "base/hash.h"

namespace terrace {

std::int64_t default_evaluation_samples(std::int64_t samples_per_step) {
  constexpr std::int64_t kLeast = 16;
  constexpr std::int64_t kSteps = 20;
  return std::max(kLeast, kSteps * kForwardsOfTraining * samples_per_step);
}

std::vector<std::int64_t> evaluation_samples(std::int64_t asked, const Dataset& data) {
  std::vector<std::int64_t> samples;
  for (std::size_t set = 0; set < data.validation_sets(); ++set) {
    const std::int64_t all = data.validation_samples(set);
    samples.push_back(asked == 0 ? all : std::min(asked, all));
  }
  return samples;
}

namespace {

std::string behind_name(const std::string& set) { return set.empty() ? "" : " of " + set; }

// Returns the loss of one set; none where the evaluation was given up.
std::optional<double> evaluate_set(const EvaluationSetting& setting, std::size_t set) {
  RankSamples& samples = setting.samples;
  const RankGroup& ranks = setting.ranks;
  const std::int64_t count = samples.evaluated(set);
  ConsolePhase phase(setting.console,
                     fmt::format("evaluating {} samples{}", count,
                                 behind_name(samples.data().validation_name(set))));
  RankSamples::Validation batch;
  double sum = 0;
  std::int64_t counted = 0;
  // All ranks take part to the end, even ranks that have no samples left.
  for (std::int64_t first = 0; first < count; first += samples.share().of_evaluation()) {
    samples.fill_validation(set, first, batch);
    if (ranks.steps().has_losses()) counted += batch.counted_targets;
    sum += ranks.sum(setting.engine.evaluate(batch.tokens));
    if (ranks.any(setting.stop.is_made() || samples.has_problem())) return std::nullopt;
    phase.advance(std::min(first + samples.share().of_evaluation(), count), count);
  }
  return sum / ranks.sum(static_cast<double>(counted));
}

}  // namespace

std::optional<ValidationLosses> evaluate(const EvaluationSetting& setting, std::int64_t step) {
  const Dataset& data = setting.samples.data();
  ValidationLosses losses;
  for (std::size_t set = 0; set < data.validation_sets(); ++set) {
    const std::optional<double> loss = evaluate_set(setting, set);
    if (!loss.has_value()) {
      setting.log.warning(fmt::format("the evaluation after step {} was not finished{}", step,
                                      setting.stop.is_made() ? " because of a signal" : ""));
      return std::nullopt;
    }
    losses.push_back({data.validation_name(set), *loss});
  }
  return losses;
}

BestRecord::Setting best_setting(const RunOptions& run, const RankSamples& samples) {
  BestRecord::Setting setting{.keeps_best = run.keep_best, .patience = run.early_stopping_patience};
  const Dataset& data = samples.data();
  const bool is_asked_for = setting.keeps_best || setting.patience > 0;
  if (!is_asked_for || data.validation_sets() == 0) return setting;
  setting.set = data.validation_name(0);
  const std::array<std::uint64_t, 2> evaluated = {data.validation_hash(0).value_or(0),
                                                  static_cast<std::uint64_t>(samples.evaluated(0))};
  setting.set_hash = hash_bytes(std::as_bytes(std::span(evaluated)));
  return setting;
}

void check_validation_losses(const ValidationLosses& losses, std::int64_t step) {
  for (const auto& [set, loss] : losses) {
    if (std::isfinite(loss)) continue;
    throw NotFinite(
        fmt::format("step {}: the validation loss{} is not a number", step, behind_name(set)),
        "lower --learning-rate; what was saved before is intact");
  }
}

}  // namespace terrace
