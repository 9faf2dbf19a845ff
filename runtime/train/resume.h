#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "base/error.h"
#include "base/log.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/config/train_options.h"
#include "runtime/train/rank_group.h"
#include "runtime/train/train_console.h"

// Finds the checkpoint that a run goes on from, and checks that the run may go on from it.
namespace terrace {

// Returns whether the run has written its final/, a model or an adapter.
bool has_result(const std::string& run_dir);

// Returns the checkpoint that --resume names: none, auto (the latest one in the run directory, if
// there is one) or a checkpoint's path. Null: a fresh start. Throws ConfigError where the path is
// no checkpoint, and the CorruptData of naming_earlier_checkpoint().
std::unique_ptr<Checkpoint> find_checkpoint(const std::string& resume, const std::string& run_dir);

// Says what a run without a checkpoint starts from, and that the run starts over if it has looked
// for a checkpoint. Warns where steps done in its directory are lost by that.
void tell_fresh_start(const TrainOptions& options, const std::string& run_dir, bool has_weights,
                      TrainConsole& console, Log& log);

// Returns how far the checkpoint is. The answer is certain only once the run holds its directory.
// Returns an empty progress where there is no checkpoint, or one that cannot be read; the latter is
// reported when it is opened.
CheckpointProgress resumed_progress(const std::string& resume, const std::string& run_dir);

// Returns `damage` of the checkpoint that `resume` stands for. If the user asked for the latest
// checkpoint, the remedy names the one before it. The run does not take that one by itself, which
// would silently give up steps.
CorruptData naming_earlier_checkpoint(const CorruptData& damage, const std::string& resume,
                                      const std::string& run_dir);

// The computation of a run, its data and its last step.
struct ResumingRun {
  const ModelConfig& model;
  const UpdateRule& rule;
  std::uint64_t seed = 0;
  std::int64_t sequence_length = 0;
  std::int64_t training_tokens = 0;
  std::int64_t last_step = 0;
  std::optional<std::uint64_t> data_hash = std::nullopt;  // Dataset::training_hash()
};

// Throws ConfigError where going on would be a mistake: the model, the optimizer, the data or the
// order of the data has changed, or the checkpoint is past the run's end.
void check_resume(const Checkpoint& checkpoint, const ResumingRun& run);

// Returns what the options change in the computation of the run in `run_dir`, according to its
// config.toml, as a line for the console. Empty where nothing changes, or where there is no such
// file. `untold` is the name of a key that the line leaves out.
std::string describe_changes(const std::string& run_dir, const TrainOptions& options,
                             std::string_view untold = {});
// Returns such a line about the number of samples in a step, which another number of ranks changes
// too. `samples_before`: what the steps until now would have had as the run is now.
std::string describe_samples(const CheckpointProgress& progress, std::int64_t samples_before,
                             std::int64_t samples_per_step);
// Returns such a line about the dropout of the adapter, which the file of --adapter changes too.
std::string describe_dropout(const ModelConfig& before, const ModelConfig& now);
// Prints these lines for a run that goes on from a checkpoint of the run in `run_dir`.
struct ChangedRun {
  const Checkpoint& from;
  const ModelConfig& model;
  std::int64_t samples_before = 0;    // of the steps until now, as the run is now
  std::int64_t samples_per_step = 0;  // of the next step
  const std::string& run_dir;
};
void tell_changes(const ChangedRun& run, const TrainOptions& options, TrainConsole& console);

// Returns the run directory that a checkpoint lies in, given the checkpoint's path.
std::string run_directory_of(const std::string& checkpoint);
// Returns whether `resume` means one of the run directory's own checkpoints.
bool resumes_in_place(const std::string& resume, const std::string& run_dir);

// Returns whether everything that --resume auto asks for is there: the result of a run of
// `total_steps`. Throws ConfigError where that run computed something other than `options` ask for.
bool is_complete(const TrainOptions& options, const std::string& run_dir, std::int64_t total_steps);
// Returns the number of steps of that result, which may come from a run that ended early; 0 where
// there is no result, or where it lacks the loss of an evaluation that belongs to it. Throws as
// is_complete() does.
std::int64_t steps_of_whole_result(const TrainOptions& options, const std::string& run_dir,
                                   std::int64_t total_steps, bool has_validation);

// The result that a run is to have.
struct AskedResult {
  const TrainOptions& options;
  const std::string& run_dir;
  std::int64_t total_steps = 0;
  bool has_validation = false;
};
// Returns whether the result is there, as steps_of_whole_result() finds on the first rank, and
// prints it if so. All ranks call it.
bool tell_complete(const AskedResult& asked, const RankGroup& ranks, TrainConsole& console);

// Returns whether a run without a checkpoint starts from the weights beside its config.json. Throws
// ConfigError where there are none and --init asks for them.
bool takes_weights(const ModelOptions& options);

// Throws ConfigError where a run that goes on in `run_dir` after `step` would delete the later
// checkpoints or the result that an earlier run made there, and may not.
void refuse_to_overwrite(const RunOptions& run, const std::string& run_dir, std::int64_t step);

// Throws ConfigError for a fresh run in a directory with another run's checkpoints, because the
// next --resume auto would mix up the two. Also throws it for a run that would replace another
// run's result.
void refuse_second_run(const std::string& resume, const std::string& run_dir);

}  // namespace terrace
