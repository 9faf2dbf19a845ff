#include "runtime/train/resume.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <optional>
#include <system_error>

#include "runtime/checkpoint/adapter_directory.h"
#include "runtime/checkpoint/hf_weight_files.h"
#include "runtime/config/train_config.h"
#include "runtime/model/adapter_targets.h"
#include "runtime/train/best_record.h"
#include "runtime/train/metrics_file.h"
#include "runtime/train/run_directory.h"

namespace terrace {
namespace {

namespace fs = std::filesystem;

// Returns whether two models compute the same, given the same tensors. Losses of routers may
// change, as other options of the training may.
bool is_same_model(const ModelConfig& a, const ModelConfig& b) {
  DecoderOptions other = b;
  other.positions = a.positions;
  other.experts.balance_coefficient = a.experts.balance_coefficient;
  other.experts.z_coefficient = a.experts.z_coefficient;
  return a == other;
}

// Refuses another adapter: an adapter of another rank has other tensors, and another scale makes
// another model of the same tensors. Dropout may change, as other options of the training may.
void check_same_adapter(const ModelConfig& before, const ModelConfig& now) {
  AdapterOptions same = before.adapter;
  same.dropout = now.adapter.dropout;
  if (same == now.adapter) return;
  throw ConfigError(
      fmt::format("the adapter ({}) differs from the adapter of the checkpoint to resume from ({})",
                  words_of(now.adapter), words_of(before.adapter)),
      "resume with the --lora flags or the --adapter of that run");
}

// Refuses other frozen tensors: a tensor that began to train in the middle of a run would have
// moments that cover no steps.
void check_same_frozen(const CheckpointProgress& progress, const ModelConfig& model) {
  std::vector<std::string> before;
  if (progress.frozen) before = progress.frozen->parameters;
  std::vector<std::string> now = frozen_parameters(parameter_layout(model));
  std::ranges::sort(before);
  std::ranges::sort(now);
  std::vector<std::string> different;
  std::ranges::set_symmetric_difference(before, now, std::back_inserter(different));
  if (different.empty()) return;
  const bool was_frozen = std::ranges::binary_search(before, different.front());
  throw ConfigError(
      fmt::format("--trainable differs from the checkpoint's, where {} {}; {} tensors differ",
                  different.front(), was_frozen ? "is frozen" : "trains", different.size()),
      "resume with the --trainable of that run, or start another run from the weights of its final "
      "directory (--model)");
}

}  // namespace

bool has_result(const std::string& run_dir) {
  const fs::path result = fs::path(run_dir) / "final";
  return system_files().exists((result / "config.json").string()) ||
         system_files().exists((result / kAdapterConfig).string());
}

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

void tell_fresh_start(const TrainOptions& options, const std::string& run_dir, bool has_weights,
                      TrainConsole& console, Log& log) {
  const std::string from =
      has_weights ? fmt::format("starts from the weights in {}", options.model.model)
                  : fmt::format("starts from random weights, --seed {}", options.model.seed);
  if (options.run.resume != "auto") return console.say(from);
  const std::int64_t lost = last_step_in_rows(run_dir);
  if (lost > 0) {
    log.warning(fmt::format(
        "--resume auto: {} steps were done in {}, but there is no checkpoint of them, so the run "
        "starts over; their rows are kept in metrics.jsonl.before",
        lost, run_dir));
  }
  console.say(
      fmt::format("--resume auto found no checkpoint in {}, so the run starts over at step "
                  "1: {}",
                  run_dir, from));
}

CheckpointProgress resumed_progress(const std::string& resume, const std::string& run_dir) {
  try {
    const std::unique_ptr<Checkpoint> checkpoint = find_checkpoint(resume, run_dir);
    return checkpoint == nullptr ? CheckpointProgress() : checkpoint->progress();
  } catch (const Error&) {
    return {};
  }
}

CorruptData naming_earlier_checkpoint(const CorruptData& damage, const std::string& resume,
                                      const std::string& run_dir) {
  // An earlier checkpoint shares damage elsewhere, as in frozen weights.
  const bool is_of_this_one = damage.remedy() == kEarlierCheckpointRemedy;
  if (resume != "auto" || !is_of_this_one) return damage;
  const std::optional<std::string> earlier = earlier_checkpoint(run_dir);
  return {damage.what(), earlier ? fmt::format("to use the one before it, give --resume {} "
                                               "--overwrite-later",
                                               *earlier)
                                 : fmt::format("{} has no other checkpoint", run_dir)};
}

void check_resume(const Checkpoint& checkpoint, const ResumingRun& run) {
  const CheckpointProgress& progress = checkpoint.progress();
  if (!is_same_model(checkpoint.model(), run.model)) {
    throw ConfigError("--model is not the model of the checkpoint to resume from",
                      "resume with the model of the checkpoint");
  }
  if (&checkpoint.rule() != &run.rule) {
    throw ConfigError(
        fmt::format("--optimizer {} cannot use the optimizer state of the checkpoint to resume "
                    "from, which belongs to --optimizer {}",
                    run.rule.name, checkpoint.rule().name),
        "resume with that optimizer, or start another run from the weights of its final directory "
        "(--model)");
  }
  check_same_adapter(checkpoint.model(), run.model);
  check_same_frozen(progress, run.model);
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
                    "with other data the run cannot continue where it stopped",
                    progress.training_tokens, progress.sequence_length),
        "resume with the data and the sequence length of that run, or start another run from "
        "the weights of its final directory (--model)");
  }
  if (progress.data_hash && run.data_hash && *progress.data_hash != *run.data_hash) {
    throw ConfigError(
        fmt::format("the checkpoint was made with other data: it had the same number of training "
                    "tokens, {}, but different ones",
                    progress.training_tokens),
        "resume with the data of that run, its --packing, --loss-on and --data-weights, or start "
        "another run from the weights of its final "
        "directory (--model)");
  }
  if (progress.step > run.last_step) {
    throw ConfigError(fmt::format("the checkpoint is from step {}, but the run ends at step {}",
                                  progress.step, run.last_step),
                      "raise --max-steps, --num-train-epochs or --stop-after-step");
  }
}

std::string describe_changes(const std::string& run_dir, const TrainOptions& options,
                             std::string_view untold) {
  const std::string file = (fs::path(run_dir) / "config.toml").string();
  std::vector<std::string> changed;
  try {
    if (!system_files().exists(file)) return "";
    changed = changed_keys(read_whole_file(system_files(), file), options);
  } catch (const IoError& problem) {  // the run can do without the file
    return fmt::format("the options of the previous run are not known: {}", problem.what());
  }
  if (!untold.empty()) {
    std::erase_if(changed, [&](const std::string& key) {
      return key.starts_with(fmt::format("{} ", untold));
    });
  }
  if (changed.empty()) return "";
  return fmt::format("from here on the run computes with other options than before: {}",
                     fmt::join(changed, ", "));
}

std::string describe_samples(const CheckpointProgress& progress, std::int64_t samples_before,
                             std::int64_t samples_per_step) {
  if (progress.samples == samples_before) return "";
  return fmt::format("from here on a step has {} samples; until now it had {:.4g}",
                     samples_per_step,
                     static_cast<double>(progress.samples) / static_cast<double>(progress.step));
}

std::string describe_dropout(const ModelConfig& before, const ModelConfig& now) {
  if (before.adapter.dropout == now.adapter.dropout) return "";
  return fmt::format("from here on dropout is {}; until now it was {}", now.adapter.dropout,
                     before.adapter.dropout);
}

// The checkpoint has its dropout, so the key in config.toml is not compared, too.
void tell_changes(const ChangedRun& run, const TrainOptions& options, TrainConsole& console) {
  for (const std::string& change :
       {describe_samples(run.from.progress(), run.samples_before, run.samples_per_step),
        describe_dropout(run.from.model(), run.model),
        describe_changes(run.run_dir, options, "lora_dropout")}) {
    if (!change.empty()) console.say(change);
  }
}

std::string run_directory_of(const std::string& checkpoint) {
  fs::path path = fs::absolute(checkpoint).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();  // the path ends in a slash
  return path.parent_path().string();
}

bool resumes_in_place(const std::string& resume, const std::string& run_dir) {
  if (resume == "none" || resume == "auto") return resume == "auto";
  std::error_code ignored;
  return fs::equivalent(run_directory_of(resume), run_dir, ignored);
}

bool is_complete(const TrainOptions& options, const std::string& run_dir,
                 std::int64_t total_steps) {
  const bool is_there = options.run.resume == "auto" && has_result(run_dir) &&
                        steps_of_result(run_dir) == total_steps;
  if (!is_there) return false;
  const std::string changes = describe_changes(run_dir, options);
  if (changes.empty()) return true;
  throw ConfigError(
      fmt::format("the run in {} is complete, and this is another run: {}", run_dir, changes),
      "give another --run-dir, or the options of the complete run");
}

std::int64_t steps_of_whole_result(const TrainOptions& options, const std::string& run_dir,
                                   std::int64_t total_steps, bool has_validation) {
  const auto early = step_of_early_end(run_dir, options.run.early_stopping_patience);
  if (early && is_complete(options, run_dir, *early)) return *early;
  const bool is_there = is_complete(options, run_dir, total_steps) &&
                        !(has_validation && lacks_validation_loss(run_dir, total_steps));
  return is_there ? total_steps : 0;
}

bool tell_complete(const AskedResult& asked, const RankGroup& ranks, TrainConsole& console) {
  const std::int64_t steps = ranks.is_first()
                                 ? steps_of_whole_result(asked.options, asked.run_dir,
                                                         asked.total_steps, asked.has_validation)
                                 : 0;
  if (steps > 0) {
    console.say(fmt::format("the run in {} is complete: its result, of {} steps, is in final",
                            asked.run_dir, steps));
  }
  return ranks.any(steps > 0);
}

bool takes_weights(const ModelOptions& options) {
  if (options.init == InitChoice::kRandom) return false;
  const bool has_config = system_files().exists((fs::path(options.model) / "config.json").string());
  if (has_config && has_hf_weights(options.model)) return true;
  if (is_checkpoint(options.model)) {
    throw ConfigError(
        fmt::format("--model {} is a checkpoint; its weights cannot be loaded this way",
                    options.model),
        "continue it with --resume, give the final directory of its run, or use only its shape "
        "with --init random");
  }
  if (has_config) {
    throw no_hf_weights(options.model, "start from random weights with --init random");
  }
  if (options.init == InitChoice::kWeights) {
    throw ConfigError(fmt::format("--init weights: the preset {} has no weights", options.model),
                      "use --init random, or a directory with config.json and safetensors");
  }
  if (has_files_like_weights(options.model)) {
    throw ConfigError(fmt::format("--model {} is a preset, but a directory with this name has "
                                  "weights and no config.json",
                                  options.model),
                      "download config.json to start from these weights, or give --init random for "
                      "the preset");
  }
  return false;
}

void refuse_to_overwrite(const RunOptions& run, const std::string& run_dir, std::int64_t step) {
  if (run.resume == "auto" || run.overwrite_later) return;
  std::vector<std::string> later = later_checkpoints(run_dir, step);
  if (has_result(run_dir) && steps_of_result(run_dir).value_or(step) > step) {
    later.emplace_back("final");
  }
  if (later.empty()) return;
  throw ConfigError(fmt::format("--resume {} goes back to an earlier step: {} of {} would be "
                                "deleted or replaced",
                                run.resume, fmt::join(later, ", "), run_dir),
                    "give --overwrite-later to allow that, or another --run-dir to keep them");
}

void refuse_second_run(const std::string& resume, const std::string& run_dir) {
  const bool has_checkpoints = latest_checkpoint(run_dir).has_value();
  if (has_checkpoints && resumes_in_place(resume, run_dir)) return;
  if (has_checkpoints) {
    throw ConfigError(fmt::format("the run directory {} has checkpoints of another run", run_dir),
                      "continue it with --resume auto, or give another --run-dir");
  }
  if (!has_result(run_dir)) return;
  if (resume == "auto") {
    throw ConfigError(
        fmt::format("the run directory {} has the result of a finished run (final), but no "
                    "checkpoint to continue from",
                    run_dir),
        fmt::format("start a new run from its weights (--model {}/final, another --run-dir); "
                    "--checkpoint-every saves checkpoints that a run can continue from",
                    run_dir));
  }
  throw ConfigError(
      fmt::format("the run directory {} has the result of a finished run (final)", run_dir),
      "give another --run-dir, or move final elsewhere first");
}

}  // namespace terrace
