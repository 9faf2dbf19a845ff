#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/error.h"
#include "runtime/checkpoint/checkpoint.h"

// Which checkpoint a run goes on from, and whether it may.
namespace terrace {

// What --resume says: none, auto (the latest of the run directory, if there is one) or a
// checkpoint's path. Null: a fresh start. Throws ConfigError where the path is no checkpoint, and
// CorruptData as naming_earlier_checkpoint() does.
std::unique_ptr<Checkpoint> find_checkpoint(const std::string& resume, const std::string& run_dir);

// `damage` of the checkpoint that `resume` stands for. Whoever asked for the latest is told which
// one is before it; that is not taken by itself, which would give up steps in silence.
CorruptData naming_earlier_checkpoint(const CorruptData& damage, const std::string& resume,
                                      const std::string& run_dir);

// What a run computes, on which data, and up to which step.
struct ResumingRun {
  const ModelConfig& model;
  std::uint64_t seed = 0;
  std::int64_t sequence_length = 0;
  std::int64_t training_tokens = 0;
  std::int64_t last_step = 0;
};

// Throws ConfigError where going on would be a mistake: another model, other data or another order
// of it, a checkpoint past the run's end.
void check_resume(const Checkpoint& checkpoint, const ResumingRun& run);

// Whether `resume` is of the run directory's own checkpoints.
bool resumes_in_place(const std::string& resume, const std::string& run_dir);

// Throws ConfigError for a fresh run among another's checkpoints, which would be mixed up with it
// at the next --resume auto, and for one that would replace another's result.
void refuse_second_run(const std::string& resume, const std::string& run_dir);

}  // namespace terrace
