#include "runtime/train/run_saver.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <optional>
#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "base/failure_text.h"
#include "base/half_arrays.h"
#include "memory/host/host_limits.h"
#include "runtime/checkpoint/adapter_directory.h"
#include "runtime/checkpoint/durable_file.h"
#include "runtime/checkpoint/hf_export.h"
#include "runtime/train/gradient_errors.h"

namespace terrace {

namespace fs = std::filesystem;

namespace {

// Ranks that wait for the writing rank hear from it this often, so that a write may take longer
// than --collective-timeout.
constexpr auto kWaitSlice = std::chrono::milliseconds(200);

}  // namespace

RunSaver::RunSaver(const SavedRun& run, const RankGroup& ranks, RankedState& state,
                   TrainConsole& console, Log& log)
    : run_(run), ranks_(ranks), state_(state), console_(console), log_(log) {
  const std::optional<GradientErrors> errors = gradient_errors_of(state.model());
  if (!errors) return;
  errors_ = {*errors, [this](std::int32_t rank, std::uint64_t begin, std::span<std::byte> out) {
               read_errors(rank, begin, out);
             }};
}

void RunSaver::read_errors(std::int32_t rank, std::uint64_t begin, std::span<std::byte> out) {
  is_reading_ = true;
  state_.read_errors(rank, begin, out);
  is_reading_ = false;
}

void RunSaver::read_finite(std::int64_t step, StateField field, const UnitLayout& unit,
                           std::int64_t begin, std::span<float> out) {
  is_reading_ = true;
  state_.read(field, static_cast<std::int32_t>(unit.index), begin, out);
  is_reading_ = false;
  read_elements_ += std::ssize(out);
  if (all_finite(out)) return;
  throw NotFinite(fmt::format("after step {} the state of unit {} has values that are not finite",
                              step, unit.index),
                  "lower --learning-rate; what was saved before is intact");
}

std::int64_t RunSaver::elements() const {
  std::int64_t count = 0;
  for (const UnitLayout& unit : run_.layout) count += unit.trained_count();
  return count;
}

CheckpointProgress RunSaver::with_frozen(const CheckpointProgress& progress) {
  CheckpointProgress saved = progress;
  if (run_.frozen != nullptr) saved.frozen = run_.frozen->reference(run_.directory, run_.layout);
  return saved;
}

void RunSaver::write(const CheckpointProgress& progress) {
  std::string path;
  {
    ConsolePhase phase(console_, fmt::format("saving checkpoint-{}", progress.step));
    const std::int64_t total = elements() * static_cast<std::int64_t>(1 + run_.rule.slots.size());
    read_elements_ = 0;
    path = write_checkpoint(
        run_.directory, with_frozen(progress), checkpointed(),
        [&](StateField field, const UnitLayout& unit, std::int64_t begin, std::span<float> out) {
          read_finite(progress.step, field, unit, begin, out);
          phase.advance(read_elements_, total);
        },
        run_.disk);
  }
  console_.say(fmt::format("saved {}", path));
}

void RunSaver::save(const CheckpointProgress& progress) {
  finish_begun();
  is_automatic_ = progress.is_automatic;
  if (has(progress.step)) return;
  if (ranks_.is_first()) {
    write(progress);
    state_.end_reads();
  } else {
    state_.serve_reads();
  }
  saved_step_ = progress.step;
  remove_old();
}

void RunSaver::take_problem(std::int64_t step, const std::exception_ptr& problem,
                            bool is_of_reading) {
  try {
    std::rethrow_exception(problem);
  } catch (const IoError& error) {
    if (is_of_reading || !(is_full_disk(error) || is_automatic_)) throw;
    problem_ = problem;
    log_.warning(fmt::format(
        "checkpoint-{} is not saved: {}; the run continues and tries again when the next one is "
        "due",
        step, error.what()));
  }
}

bool RunSaver::try_save(const CheckpointProgress& progress) {
  finish_begun();
  is_automatic_ = progress.is_automatic;
  if (has(progress.step)) return true;
  if (failed_step_ == progress.step) return false;
  problem_ = nullptr;
  if (ranks_.is_first()) {
    try {
      write(progress);
    } catch (const IoError&) {
      take_problem(progress.step, std::current_exception(), is_reading_);
    }
    state_.end_reads();
  } else {
    state_.serve_reads();
  }
  const bool is_saved = !ranks_.any(problem_ != nullptr);
  (is_saved ? saved_step_ : failed_step_) = progress.step;
  if (is_saved) remove_old();
  return is_saved;
}

void RunSaver::start_writing(const CheckpointProgress& progress) {
  // The memory that is free now may be less than the budget leaves.
  const std::size_t most_bytes = read_host_limits().usable_bytes() / 2;
  const CheckpointWriter::Job job = {.run_dir = run_.directory,
                                     .progress = with_frozen(progress),
                                     .model = checkpointed(),
                                     .staging_bytes = std::min(run_.staging_bytes, most_bytes),
                                     .disk = run_.disk};
  // The writing thread reads no errors.
  TERRACE_CHECK(!errors_);
  const auto fetch = [this, step = progress.step](StateField field, const UnitLayout& unit,
                                                  std::int64_t begin, std::span<float> out) {
    read_finite(step, field, unit, begin, out);
  };
  if (run_.gate != nullptr) return writer_.start_beside(job, fetch, *run_.gate);
  ConsolePhase phase(console_, fmt::format("copying the state for checkpoint-{}", progress.step));
  const std::int64_t total = elements() * static_cast<std::int64_t>(1 + run_.rule.slots.size());
  read_elements_ = 0;
  writer_.start(
      job, [&](StateField field, const UnitLayout& unit, std::int64_t begin, std::span<float> out) {
        fetch(field, unit, begin, out);
        phase.advance(read_elements_, total);
      });
}

bool RunSaver::try_start_writing(const CheckpointProgress& progress) {
  if (errors_) return false;
  try {
    start_writing(progress);
    return true;
  } catch (const OutOfMemory&) {  // less is free than the system said
    return false;
  }
}

void RunSaver::begin_or_write(const CheckpointProgress& progress) {
  if (try_start_writing(progress)) return;
  write(progress);
  remove_old();
}

void RunSaver::begin_save(const CheckpointProgress& progress) {
  // The steps do not wait for a drive that needs longer than the time between two automatic
  // checkpoints.
  const bool is_busy = begun_step_ >= 0 && !writer_.ends_within(std::chrono::milliseconds(0));
  if (progress.is_automatic && ranks_.any(is_busy)) return;
  finish_begun();
  is_automatic_ = progress.is_automatic;
  if (has(progress.step) || failed_step_ == progress.step) return;
  problem_ = nullptr;
  begun_step_ = progress.step;
  if (!ranks_.is_first()) return state_.serve_reads();
  try {
    begin_or_write(progress);
  } catch (const IoError&) {
    take_problem(progress.step, std::current_exception(), is_reading_);
  }
  state_.end_reads();
}

void RunSaver::take_result(const CheckpointWriter::Result& result) {
  if (result.problem != nullptr) {
    return take_problem(begun_step_, result.problem, result.is_of_reading);
  }
  console_.say(fmt::format("saved {}", result.path));
  remove_old();
}

void RunSaver::poll() {
  const std::optional<CheckpointWriter::Result> result = writer_.poll();
  if (result.has_value()) take_result(*result);
}

void RunSaver::finish_begun() {
  if (begun_step_ < 0) return;
  {
    const ConsolePhase phase(console_, fmt::format("writing checkpoint-{}", begun_step_));
    bool is_done = false;
    while (ranks_.any(!is_done)) is_done = writer_.ends_within(kWaitSlice);
  }
  poll();
  const bool is_saved = !ranks_.any(problem_ != nullptr);
  (is_saved ? saved_step_ : failed_step_) = std::exchange(begun_step_, -1);
}

void RunSaver::complete_after(const std::exception& failure) noexcept {
  try {
    if (run_.ranks_are_threads) ranks_.world()->abort(failure_text(failure));
    const std::optional<CheckpointWriter::Result> result = writer_.wait();
    if (!result.has_value()) return;
    if (result->problem != nullptr) std::rethrow_exception(result->problem);
    take_result(*result);
  } catch (const std::exception& problem) {
    log_.warning(fmt::format("checkpoint-{} is not saved: {}", begun_step_, failure_text(problem)));
  }
}

void RunSaver::rethrow_unsaved(std::int64_t step) const {
  if (failed_step_ == step && saved_step_ != step && problem_ != nullptr) {
    std::rethrow_exception(problem_);
  }
}

void RunSaver::remove_old() {
  if (!ranks_.is_first()) return;
  const std::int64_t best = run_.best.kept_step();
  if (run_.keep_last > 0) remove_old_checkpoints(run_.directory, run_.keep_last, run_.disk, best);
  if (run_.keep_automatic == 0 || !is_automatic_) return;
  remove_old_automatic_checkpoints(run_.directory, run_.keep_automatic,
                                   std::array{best, run_.resumed_step}, run_.disk);
}

void RunSaver::with_parameters(std::int64_t step, FunctionRef<void(FetchParameter)> use) {
  TERRACE_CHECK_EQ(ranks_.count(), 1);
  finish_begun();  // it may be reading the state
  use([&](const UnitLayout& unit, const ParameterTensor& tensor, std::int64_t begin,
          std::span<float> out) {
    const UnitLayout& own = run_.layout.at(static_cast<std::size_t>(unit.index));
    // A reader's layout may have the same parameters in other places: frozen_layout() has.
    const auto found = std::ranges::find(own.tensors, tensor.name, &ParameterTensor::name);
    TERRACE_CHECK(found != own.tensors.end());
    if (!found->trainable) return run_.frozen->read(own, found->offset + begin, out);
    read_finite(step, StateField::kMaster, own, found->offset + begin, out);
  });
}

void RunSaver::export_weights(std::int64_t step) {
  if (!ranks_.is_first()) return state_.serve_reads();
  if (!fs::is_directory(run_.directory)) {  // a new one would lack the old content
    throw IoError({.operation = "write to", .path = run_.directory, .error_number = ENOENT},
                  "the run directory has disappeared; if it was moved, its checkpoints are in its "
                  "new place");
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
    // If the state cannot be read, a checkpoint cannot be made either.
    if (!ranks_.is_first() || is_reading_) return;
    log_.warning(fmt::format("{}; the learned state is saved as a checkpoint", problem.what()));
    save();
  };
  finish_begun();
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
