#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/log.h"
#include "runtime/config/train_options.h"
#include "runtime/engine/model_runtime.h"
#include "runtime/train/best_record.h"
#include "runtime/train/rank_group.h"
#include "runtime/train/rank_samples.h"
#include "runtime/train/stop_request.h"
#include "runtime/train/train_console.h"
#include "runtime/train/validation_loss.h"

namespace terrace {

// The operations of training a sample, in forwards of it: the backward is two.
inline constexpr std::int64_t kForwardsOfTraining = 3;

// Returns --eval-samples where it is not given: as many samples as cost the operations of 20
// training steps, at least 16.
std::int64_t default_evaluation_samples(std::int64_t samples_per_step);

// Returns how many samples of each validation set an evaluation covers; `asked` is --eval-samples,
// 0 for all.
std::vector<std::int64_t> evaluation_samples(std::int64_t asked, const Dataset& data);

// Whether the step is one of every `every` (0: none is).
inline bool is_due(std::int64_t every, std::int64_t step) { return every > 0 && step % every == 0; }

// What an evaluation works with; all of it outlives the evaluation.
struct EvaluationSetting {
  ModelRuntime& engine;
  RankSamples& samples;
  const RankGroup& ranks;
  const StopRequest& stop;
  TrainConsole& console;
  Log& log;
};

// The losses of all validation sets, in their order.
using ValidationLosses = std::vector<ValidationLoss>;

// Returns the losses of the evaluation samples of each set after step `step`; the same on all
// ranks. All ranks call it, when drained. Returns none where a signal came before the end, or where
// a rank cannot read what it has to evaluate on: RankSamples has that problem.
std::optional<ValidationLosses> evaluate(const EvaluationSetting& setting, std::int64_t step);

// What the best of the evaluated states is chosen by: the first set, and what is evaluated of it.
BestRecord::Setting best_setting(const RunOptions& run, const RankSamples& samples);

// Throws NotFinite where a loss after a step is not a number.
void check_validation_losses(const ValidationLosses& losses, std::int64_t step);

}  // namespace terrace
