#include "runtime/train/run_saver.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <filesystem>
#include <optional>
#include <utility>

#include "base/error.h"
#include "runtime/checkpoint/adapter_directory.h"
#include "runtime/checkpoint/durable_file.h"
#include "runtime/checkpoint/hf_export.h"

namespace terrace {

namespace fs = std::filesystem;

void RunSaver::read_finite(std::int64_t step, StateField field, const UnitLayout& unit,
                           std::int64_t begin, std::span<float> out) {
  is_reading_ = true;
  state_.read(field, static_cast<std::int32_t>(unit.index), begin, out);
  is_reading_ = false;
  read_elements_ += std::ssize(out);
  if (std::all_of(out.begin(), out.end(), [](float value) { return std::isfinite(value); })) return;
  throw NotFinite(fmt::format("after step {} the state of unit {} is not finite", step, unit.index),
                  "lower --learning-rate; what was saved before is untouched");
}

std::int64_t RunSaver::elements() const {
  std::int64_t count = 0;
  for (const UnitLayout& unit : run_.layout) count += unit.trained_end();
  return count;
}

void RunSaver::write(const CheckpointProgress& progress) {
  std::string path;
  {
    ConsolePhase phase(console_, fmt::format("saving checkpoint-{}", progress.step));
    const std::int64_t total = elements() * static_cast<std::int64_t>(1 + run_.rule.slots.size());
    read_elements_ = 0;
    CheckpointProgress saved = progress;
    if (run_.frozen != nullptr) saved.frozen = run_.frozen->reference(run_.directory, run_.layout);
    path = write_checkpoint(
        run_.directory, saved, {run_.model, run_.layout, run_.rule},
        [&](StateField field, const UnitLayout& unit, std::int64_t begin, std::span<float> out) {
          read_finite(progress.step, field, unit, begin, out);
          phase.advance(read_elements_, total);
        });
  }
  console_.say(fmt::format("saved {}", path));
}

void RunSaver::save(const CheckpointProgress& progress) {
  if (ranks_.is_first()) {
    write(progress);
    state_.end_reads();
  } else {
    state_.serve_reads();
  }
  saved_step_ = progress.step;
}

bool RunSaver::try_save(const CheckpointProgress& progress) {
  if (failed_step_ == progress.step) return false;
  problem_ = nullptr;
  if (ranks_.is_first()) {
    try {
      write(progress);
    } catch (const IoError& problem) {
      if (is_reading_ || !is_full_disk(problem)) throw;
      problem_ = std::current_exception();
      log_.warning(
          fmt::format("checkpoint-{} is not saved: {}; the run goes on, and tries again when the "
                      "next one is due",
                      progress.step, problem.what()));
    }
    state_.end_reads();
  } else {
    state_.serve_reads();
  }
  const bool is_saved = !ranks_.any(problem_ != nullptr);
  (is_saved ? saved_step_ : failed_step_) = progress.step;
  return is_saved;
}

void RunSaver::rethrow_unsaved(std::int64_t step) const {
  if (failed_step_ == step && saved_step_ != step && problem_ != nullptr) {
    std::rethrow_exception(problem_);
  }
}

void RunSaver::remove_old(std::int64_t best_step) {
  if (!ranks_.is_first() || run_.keep_last == 0) return;
  remove_old_checkpoints(run_.directory, run_.keep_last, system_files(), best_step);
}

void RunSaver::export_weights(std::int64_t step) {
  if (!ranks_.is_first()) return state_.serve_reads();
  if (!fs::is_directory(run_.directory)) {  // it is not made anew, without what was in it
    throw IoError({.operation = "write to", .path = run_.directory, .error_number = ENOENT},
                  "the run directory has vanished; its checkpoints are where it was moved to");
  }
  HfExportOptions options;
  options.directory = (fs::path(run_.directory) / "final").string();
  options.types = run_.types;
  options.companions = run_.companions;
  if (run_.frozen != nullptr) run_.frozen->verify_weights();
  std::optional<ConsolePhase> phase(std::in_place, console_, "saving final");
  const std::int64_t total = elements();
  read_elements_ = 0;
  const auto fetch = [&](const UnitLayout& unit, const ParameterTensor& tensor, std::int64_t begin,
                         std::span<float> out) {
    if (!tensor.trainable) return run_.frozen->read(unit, tensor.offset + begin, out);
    read_finite(step, StateField::kMaster, unit, tensor.offset + begin, out);
    phase->advance(read_elements_, total);
  };
  if (run_.model.adapter.is_there()) {
    write_adapter_directory({options.directory, run_.base_model, run_.types, run_.companions},
                            run_.model, run_.layout, fetch);
  } else {
    write_hf_directory(options, run_.model, run_.layout, fetch);
  }
  state_.end_reads();
  phase.reset();
  console_.say(fmt::format("saved {}", options.directory));
}

void RunSaver::export_or_save(std::int64_t step, FunctionRef<void()> save) {
  const auto save_instead = [&](const Error& problem) {
    // Of state that cannot be read no checkpoint can be made either.
    if (!ranks_.is_first() || is_reading_) return;
    log_.warning(fmt::format("{}; what was learned is saved as a checkpoint", problem.what()));
    save();
  };
  try {
    export_weights(step);
  } catch (const IoError& problem) {
    save_instead(problem);
    throw;
  } catch (const ConfigError& problem) {
    save_instead(problem);
    throw;
  }
}

}  // namespace terrace
