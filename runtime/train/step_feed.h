#pragma once

#include <cstdint>
#include <vector>

#include "base/log.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/config/train_options.h"
#include "runtime/engine/model_runtime.h"
#include "runtime/train/rank_group.h"
#include "runtime/train/rank_samples.h"
#include "runtime/train/rank_shares.h"
#include "runtime/train/train_console.h"

namespace terrace {

// Gives one rank its batch for each step. It decides how many micro-batches the rank has in the
// step, and which samples they are; samples are counted over all steps of a run. Used by one
// thread.
class StepFeed {
 public:
  // Borrows all. The options say how many micro-batches a step has, and which rank has which.
  StepFeed(const TrainOptions& options, RankSamples& samples, const RankGroup& ranks, Log& log);

  // Return the samples, and their tokens, of all ranks in a step; in the largest step; and in all
  // steps up to one.
  std::int64_t samples_of(std::int64_t step) const;
  std::int64_t tokens_of(std::int64_t step) const;
  std::int64_t tokens_of_largest() const;
  std::int64_t samples_until(std::int64_t step) const;

  // Goes on behind the samples of a checkpoint, and takes over the numbers of micro-batches that
  // were measured for it.
  void go_on_from(const CheckpointProgress& progress);
  // Gives each data-parallel rank its own number of micro-batches, if there are --rank-shares: as
  // they say or, unless they were taken over, by measuring. Says on the console what they are.
  // Called by all ranks before the first step.
  void divide(const RankOptions& options, ModelRuntime& engine, TrainConsole& console);
  // Returns the micro-batches of a step by data-parallel rank; empty: all have the same.
  const std::vector<std::int64_t>& by_rank() const { return divided_.by_rank; }

  // The first sample of the step that is taken next.
  std::int64_t next_sample() const { return next_sample_; }
  // Reads this rank's samples of the step that is taken next, so that taking it does not wait.
  void fetch(std::int64_t step) { samples_.fetch(next_sample_, part_of(step)); }
  // Returns the batch of a step, whose tokens are good until the next call. Warns once if a step
  // has no target. Throws what reading the samples has thrown. All ranks call it.
  StepBatch take(std::int64_t step, double learning_rate);

 private:
  StepPart part_of(std::int64_t step) const;

  const BatchOptions& batch_;
  RankSamples& samples_;
  const RankGroup& ranks_;
  Log& log_;
  DividedStep divided_;
  std::int64_t next_sample_ = 0;
  bool had_no_targets_ = false;  // in some step
};

}  // namespace terrace
