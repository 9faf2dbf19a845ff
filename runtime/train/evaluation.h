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

// The cost of training on a sample, counted in forward passes: the backward pass costs two.
inline constexpr std::int64_t kForwardsOfTraining = 3;

// Returns the default of --eval-samples: as many samples as cost the operations of 20 training
// steps, at least 16.
std::int64_t default_evaluation_samples(std::int64_t samples_per_step);

// Returns how many samples of each validation set an evaluation covers; `asked` is --eval-samples,
// 0 for all.
std::vector<std::int64_t> evaluation_samples(std::int64_t asked, const Dataset& data);

// Returns whether something done every `every` steps is due after this step (0: never).
inline bool is_due(std::int64_t every, std::int64_t step) { return every > 0 && step % every == 0; }

// The objects that an evaluation works with; all of them outlive the evaluation.
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
// ranks. All ranks call it, when the engine is drained. Returns none where a signal came before the
// end, or where a rank cannot read its samples: RankSamples then has the problem.
std::optional<ValidationLosses> evaluate(const EvaluationSetting& setting, std::int64_t step);

// Returns what the best of the evaluated states is chosen by: the first set, and the samples of it
// that are evaluated.
BestRecord::Setting best_setting(const RunOptions& run, const RankSamples& samples);

// Throws NotFinite where a loss after a step is not a number.
void check_validation_losses(const ValidationLosses& losses, std::int64_t step);

}  // namespace terrace
