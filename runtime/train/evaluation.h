#pragma once

#include <cstdint>
#include <optional>

#include "base/log.h"
#include "runtime/engine/model_runtime.h"
#include "runtime/train/rank_group.h"
#include "runtime/train/rank_samples.h"
#include "runtime/train/stop_request.h"
#include "runtime/train/train_console.h"

namespace terrace {

// The operations of training a sample, in forwards of it: the backward is two.
inline constexpr std::int64_t kForwardsOfTraining = 3;

// Returns --eval-samples where it is not given: as many samples as cost the operations of 20
// training steps, at least 16.
std::int64_t default_evaluation_samples(std::int64_t samples_per_step);

// Returns how many samples of a split of so many windows an evaluation covers; `asked` is
// --eval-samples, 0 for all.
std::int64_t evaluation_samples(std::int64_t asked, std::int64_t windows);

// What an evaluation works with; all of it outlives the evaluation.
struct EvaluationSetting {
  ModelRuntime& engine;
  RankSamples& samples;
  const RankGroup& ranks;
  const StopRequest& stop;
  TrainConsole& console;
  Log& log;
};

// Returns the loss of the evaluation samples after step `step`, in nats per token. All ranks call
// it, when drained. Returns none where a signal came before the end, or where a rank cannot read
// what it has to evaluate on: RankSamples has that problem.
std::optional<double> evaluate(const EvaluationSetting& setting, std::int64_t step);

// Throws NotFinite where the loss after a step is not a number.
void check_validation_loss(const std::optional<double>& loss, std::int64_t step);

}  // namespace terrace
