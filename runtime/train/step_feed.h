#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/log.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/config/train_options.h"
#include "runtime/engine/model_runtime.h"
#include "runtime/train/noise_schedule.h"
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

  // Returns the samples of a step, over all ranks.
  std::int64_t samples_of(std::int64_t step) const;
  // Returns their tokens.
  std::int64_t tokens_of(std::int64_t step) const;
  // Returns the samples of the largest step.
  std::int64_t samples_of_largest() const;
  // Returns the samples of steps 1 to `step` together.
  std::int64_t samples_until(std::int64_t step) const;
  // Returns the samples that will be used up by the end of a step, given the progress until now. It
  // is the most that there may be where the gradient noise scale decides.
  std::int64_t samples_used_by(std::int64_t step, const CheckpointProgress& now) const;
  // Returns the samples of the largest step divided by the samples of this step.
  double largest_to(std::int64_t step) const;
  // Returns the tokens of a step in which every rank has all micro-batches of its program.
  std::int64_t tokens_of_program() const;
  // Returns the tokens of the step whose time is predicted: with --rank-shares auto all that the
  // program has room for, else the tokens of the largest step.
  std::int64_t planned_tokens() const;
  // Returns whether all steps have the micro-batches that the plan is for, so that its predicted
  // time is theirs.
  bool has_steps_of_the_plan() const;

  // Returns what the plan says of --rank-shares: see describe_planned_shares().
  std::string describe_planned() const { return planned_shares_; }

  // Continues after the last sample that a checkpoint has used, and with the gradient noise that
  // its run has measured. If the checkpoint is the run's own, also takes over the numbers of
  // micro-batches that were measured for it.
  void go_on_from(const CheckpointProgress& progress, bool is_own);
  // With --rank-shares, sets how many micro-batches each data-parallel rank has: from the given
  // proportions, from the checkpoint, or by measuring. Says on the console what they are, unless
  // the plan has said so already. Called by all ranks before the first step.
  void divide(ModelRuntime& engine, TrainConsole& console);
  // Returns the numbers that divide() has set and where they come from, as a JSON object for
  // run.json. Empty without --rank-shares.
  std::string shares_json() const;
  // Adds to a checkpoint's progress what go_on_from() takes from it.
  void add_to(CheckpointProgress& progress) const;

  // The first sample of the step that is taken next.
  std::int64_t next_sample() const { return next_sample_; }
  // Reads this rank's samples of the step that is taken next, so that taking it does not wait.
  void fetch(std::int64_t step) { samples_.fetch(next_sample_, part_of(step)); }
  // Returns the batch of a step, whose tokens are good until the next call. Warns once if a step
  // has no target. Throws what reading the samples has thrown. All ranks call it.
  StepBatch take(std::int64_t step, double learning_rate);
  // Takes the result of a step, in order, before the step after the next is fetched. Returns what
  // is known of the gradient noise by then.
  NoiseFigures observe(std::int64_t step, const StepResult& result);

 private:
  StepPart part_of(std::int64_t step) const;

  BatchOptions batch_;      // with the phases that were chosen so far
  const bool is_measured_;  // --rank-shares auto
  RankSamples& samples_;
  const RankGroup& ranks_;
  Log& log_;
  DividedStep divided_;
  const std::string planned_shares_;
  std::string shares_origin_;  // of divided_.by_rank, in words; set by divide()
  GradientNoiseState noise_;
  std::int64_t next_sample_ = 0;
  bool had_no_targets_ = false;  // in some step
};

}  // namespace terrace
