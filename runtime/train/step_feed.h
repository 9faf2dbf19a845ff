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

  // Return the samples, and their tokens, of all ranks in a step; the samples of the largest step;
  // and the samples of all steps up to one.
  std::int64_t samples_of(std::int64_t step) const;
  std::int64_t tokens_of(std::int64_t step) const;
  std::int64_t samples_of_largest() const;
  std::int64_t samples_until(std::int64_t step) const;
  // Returns how many times as many samples as this step the largest one has.
  double largest_to(std::int64_t step) const;
  // Return the tokens of a step in which every rank has all micro-batches of its program, and the
  // tokens of the step that the plan is for.
  std::int64_t tokens_of_program() const;
  std::int64_t planned_tokens() const;
  // Returns whether all steps have the micro-batches that the plan is for, so that its predicted
  // time is theirs.
  bool has_steps_of_the_plan() const;

  // Goes on behind the samples of a checkpoint. If the checkpoint is the run's own, also takes over
  // the numbers of micro-batches that were measured for it.
  void go_on_from(const CheckpointProgress& progress, bool is_own);
  // Gives each data-parallel rank its own number of micro-batches, if there are --rank-shares: as
  // they say or, unless they were taken over, by measuring. Says on the console what they are.
  // Called by all ranks before the first step.
  void divide(ModelRuntime& engine, TrainConsole& console);
  // Returns the micro-batches of a step by data-parallel rank, if they were measured.
  std::vector<std::int64_t> measured_by_rank() const;

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
  const bool is_measured_;  // --rank-shares auto
  RankSamples& samples_;
  const RankGroup& ranks_;
  Log& log_;
  DividedStep divided_;
  std::int64_t next_sample_ = 0;
  bool had_no_targets_ = false;  // in some step
};

}  // namespace terrace
