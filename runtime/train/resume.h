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

// Which checkpoint a run goes on from, and whether it may.
namespace terrace {

// Whether the run has written its final/, a model or an adapter.
bool has_result(const std::string& run_dir);

// What --resume says: none, auto (the latest of the run directory, if there is one) or a
// checkpoint's path. Null: a fresh start. Throws ConfigError where the path is no checkpoint, and
// CorruptData as naming_earlier_checkpoint() does.
std::unique_ptr<Checkpoint> find_checkpoint(const std::string& resume, const std::string& run_dir);

// Says what a run that goes on from no checkpoint starts from, and that it starts over where it has
// looked for one; warns where steps that were done in its directory are lost so.
void tell_fresh_start(const TrainOptions& options, const std::string& run_dir, bool has_weights,
                      TrainConsole& console, Log& log);

// How far that is, as well as can be told before the run directory is this run's own: nothing where
// there is no checkpoint, or none that can be read, which is told when it is opened.
CheckpointProgress resumed_progress(const std::string& resume, const std::string& run_dir);

// `damage` of the checkpoint that `resume` stands for. Whoever asked for the latest is told which
// one is before it; that is not taken by itself, which would give up steps in silence.
CorruptData naming_earlier_checkpoint(const CorruptData& damage, const std::string& resume,
                                      const std::string& run_dir);

// What a run computes, on which data, and up to which step.
struct ResumingRun {
  const ModelConfig& model;
  const UpdateRule& rule;
  std::uint64_t seed = 0;
  std::int64_t sequence_length = 0;
  std::int64_t training_tokens = 0;
  std::int64_t last_step = 0;
  std::optional<std::uint64_t> data_hash = std::nullopt;  // Dataset::training_hash()
};

// Throws ConfigError where going on would be a mistake: another model or optimizer, other data or
// another order of it, a checkpoint past the run's end.
void check_resume(const Checkpoint& checkpoint, const ResumingRun& run);

// What the options change of what the run in `run_dir` computed, by its config.toml, as a line for
// the console; empty where nothing, or where there is no such file.
std::string describe_changes(const std::string& run_dir, const TrainOptions& options);
// Likewise of the samples of a step, which other ranks change too.
std::string describe_samples(const CheckpointProgress& progress, std::int64_t samples_per_step);
// Says both of a run that goes on from `progress`, a checkpoint of the run in `run_dir`.
void tell_changes(const CheckpointProgress& progress, std::int64_t samples_per_step,
                  const std::string& run_dir, const TrainOptions& options, TrainConsole& console);

// That a checkpoint, a path, lies in.
std::string run_directory_of(const std::string& checkpoint);
// Whether `resume` is of the run directory's own checkpoints.
bool resumes_in_place(const std::string& resume, const std::string& run_dir);

// Whether all that --resume auto asks for is there: the result of a run of `total_steps`. Throws
// ConfigError where that run computed something else than `options` ask for.
bool is_complete(const TrainOptions& options, const std::string& run_dir, std::int64_t total_steps);
// Returns of how many steps that result is, which may be that of a run that ended early; 0 where it
// is not there, or lacks the loss of an evaluation that belongs to it. Throws likewise.
std::int64_t steps_of_whole_result(const TrainOptions& options, const std::string& run_dir,
                                   std::int64_t total_steps, bool has_validation);

// The result that a run is to have.
struct AskedResult {
  const TrainOptions& options;
  const std::string& run_dir;
  std::int64_t total_steps = 0;
  bool has_validation = false;
};
// Returns whether it is there, as steps_of_whole_result() tells the first rank, and says so. All
// ranks call it.
bool tell_complete(const AskedResult& asked, const RankGroup& ranks, TrainConsole& console);

// Returns whether a run that goes on from no checkpoint starts from the weights beside its
// config.json. Throws ConfigError where there are none and --init asks for them.
bool takes_weights(const ModelOptions& options);

// Throws ConfigError where a run that goes on in `run_dir` after `step` would delete what a run
// went on to make after that step there, and may not.
void refuse_to_overwrite(const RunOptions& run, const std::string& run_dir, std::int64_t step);

// Throws ConfigError for a fresh run among another's checkpoints, which would be mixed up with it
// at the next --resume auto, and for one that would replace another's result.
void refuse_second_run(const std::string& resume, const std::string& run_dir);

}  // namespace terrace
