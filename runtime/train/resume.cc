#include "runtime/train/resume.h"

#include <fmt/format.h>

#include <filesystem>
#include <optional>
#include <system_error>

namespace terrace {
namespace {

// Whether two models compute the same, given the same tensors.
bool is_same_model(const ModelConfig& a, const ModelConfig& b) {
  return a.family == b.family && a.heads == b.heads && a.key_value_heads == b.key_value_heads &&
         a.head_width == b.head_width && a.norm_epsilon == b.norm_epsilon && a.tied == b.tied &&
         a.rope == b.rope;
}

}  // namespace

std::unique_ptr<Checkpoint> find_checkpoint(const std::string& resume, const std::string& run_dir) {
  if (resume == "none") return nullptr;
  if (resume != "auto") return std::make_unique<Checkpoint>(resume);
  const std::optional<std::string> latest = latest_checkpoint(run_dir);
  if (!latest.has_value()) return nullptr;
  try {
    return std::make_unique<Checkpoint>(*latest);
  } catch (const CorruptData& damage) {
    throw naming_earlier_checkpoint(damage, resume, run_dir);
  }
}

CorruptData naming_earlier_checkpoint(const CorruptData& damage, const std::string& resume,
                                      const std::string& run_dir) {
  if (resume != "auto") return damage;
  const std::optional<std::string> earlier = earlier_checkpoint(run_dir);
  return {damage.what(), earlier ? fmt::format("that would be --resume {}", *earlier)
                                 : fmt::format("{} has no other checkpoint", run_dir)};
}

void check_resume(const Checkpoint& checkpoint, const ResumingRun& run) {
  const CheckpointProgress& progress = checkpoint.progress();
  if (!is_same_model(checkpoint.model(), run.model)) {
    throw ConfigError("--model is not the model of the checkpoint to resume from",
                      "resume with the model that the checkpoint was made of");
  }
  if (progress.seed != run.seed) {
    throw ConfigError(fmt::format("--seed {} would change the order of the data: the checkpoint "
                                  "was made with --seed {}",
                                  run.seed, progress.seed),
                      "resume with that seed");
  }
  if (progress.sequence_length != run.sequence_length ||
      progress.training_tokens != run.training_tokens) {
    throw ConfigError(
        fmt::format("the checkpoint was made with {} training tokens and --sequence-length {}: "
                    "other data would not go on where it stopped",
                    progress.training_tokens, progress.sequence_length),
        "resume with the data and the sequence length of that run, or start another run from "
        "the weights of its final directory (--model)");
  }
  if (progress.step > run.last_step) {
    throw ConfigError(fmt::format("the checkpoint is of step {}, and the run ends at step {}",
                                  progress.step, run.last_step),
                      "raise --max-steps or --stop-after-step");
  }
}

bool resumes_in_place(const std::string& resume, const std::string& run_dir) {
  if (resume == "none" || resume == "auto") return resume == "auto";
  std::error_code ignored;
  std::filesystem::path path = std::filesystem::absolute(resume).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();  // of a slash at the end
  return std::filesystem::equivalent(path.parent_path(), run_dir, ignored);
}

void refuse_second_run(const std::string& resume, const std::string& run_dir) {
  const bool has_checkpoints = latest_checkpoint(run_dir).has_value();
  if (has_checkpoints && resumes_in_place(resume, run_dir)) return;
  if (has_checkpoints) {
    throw ConfigError(fmt::format("the run directory {} has checkpoints of another run", run_dir),
                      "go on with --resume auto, or give another --run-dir");
  }
  if (std::filesystem::exists(std::filesystem::path(run_dir) / "final" / "config.json")) {
    throw ConfigError(
        fmt::format("the run directory {} has the result of a finished run (final)", run_dir),
        "give another --run-dir, or move final away first");
  }
}

}  // namespace terrace
