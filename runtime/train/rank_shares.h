#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/config/train_options.h"
#include "runtime/engine/model_runtime.h"
#include "runtime/train/rank_group.h"
#include "runtime/train/rank_samples.h"

// Unequal parts of a step for data-parallel ranks of unequal speed (--rank-shares): each rank has
// its own number of a step's micro-batches. docs/parallel.md explains it.
namespace terrace {

// Divides `all` micro-batches in proportion to the shares. Throws ConfigError if some rank would
// get a part of a micro-batch.
std::vector<std::int64_t> divide_by_shares(std::int64_t all,
                                           const std::vector<std::int64_t>& shares);

// Divides `all` micro-batches so that the slowest rank finishes as early as possible. `seconds`:
// the time that each rank takes for a micro-batch. Every rank gets 1 to `most`. `all` is at least
// the number of ranks, and at most that number times `most`.
std::vector<std::int64_t> divide_by_time(std::int64_t all, std::span<const double> seconds,
                                         std::int64_t most);

// The micro-batches of a step over data-parallel ranks.
struct DividedStep {
  std::int64_t all = 1;
  std::int64_t most = 1;  // the largest number that a rank may get; the step is compiled for it
  std::vector<std::int64_t> by_rank;  // empty: equal, or not measured yet

  // Takes numbers that were measured before, if they divide this step too.
  void take(const std::vector<std::int64_t>& measured, std::int64_t ranks);
};

// Returns the division that the options ask for. Throws ConfigError if the data-parallel ranks
// cannot have these shares.
DividedStep divided_step(const TrainOptions& options, std::int64_t data_ranks);

// Sets the number of micro-batches that a rank's step is compiled for and, where shares are
// measured, an evaluation to measure them with. Throws ConfigError if --rank-shares or
// --accumulation-schedule does not work with this model or these ranks.
void set_micro_batches(const TrainOptions& options, const RankGroup& ranks,
                       ModelRuntimeOptions& engine);

// Measures how long each data-parallel rank computes for a micro-batch, by forward passes of about
// a second, and divides the step by that. Changes nothing else. All ranks call it, while no step is
// under way.
std::vector<std::int64_t> measure_shares(const DividedStep& step, ModelRuntime& engine,
                                         const RankSamples& samples, const RankGroup& ranks);

// Returns a line for the console: "micro-batches of each step by data-parallel rank: 5, 3
// (measured)".
std::string describe_shares(const std::vector<std::int64_t>& by_rank, const std::string& origin);

// Returns what is known of the shares when the step is planned, as a line that begins with a
// newline: the numbers or, if they will be measured, the most that a rank may get. Empty without
// --rank-shares.
std::string describe_planned_shares(const TrainOptions& options, const DividedStep& step);

}  // namespace terrace
