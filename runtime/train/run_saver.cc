#include "runtime/train/run_saver.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <filesystem>

#include "base/error.h"
#include "runtime/checkpoint/adapter_directory.h"
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

std::string RunSaver::save(const CheckpointProgress& progress) {
  if (!run_.is_first_rank) {
    state_.serve_reads();
    return "";
  }
  ConsolePhase phase(console_, fmt::format("saving checkpoint-{}", progress.step));
  const std::int64_t total = elements() * static_cast<std::int64_t>(1 + run_.rule.slots.size());
  read_elements_ = 0;
  CheckpointProgress saved = progress;
  if (run_.frozen != nullptr) saved.frozen = run_.frozen->reference(run_.directory, run_.layout);
  const std::string path = write_checkpoint(
      run_.directory, saved, {run_.model, run_.layout, run_.rule},
      [&](StateField field, const UnitLayout& unit, std::int64_t begin, std::span<float> out) {
        read_finite(progress.step, field, unit, begin, out);
        phase.advance(read_elements_, total);
      });
  state_.end_reads();
  return path;
}

void RunSaver::remove_old(std::int64_t best_step) {
  if (!run_.is_first_rank || run_.keep_last == 0) return;
  remove_old_checkpoints(run_.directory, run_.keep_last, system_files(), best_step);
}

std::string RunSaver::export_weights(std::int64_t step) {
  if (!run_.is_first_rank) {
    state_.serve_reads();
    return "";
  }
  if (!fs::is_directory(run_.directory)) {  // it is not made anew, without what was in it
    throw IoError({.operation = "write to", .path = run_.directory, .error_number = ENOENT},
                  "the run directory has vanished; its checkpoints are where it was moved to");
  }
  HfExportOptions options;
  options.directory = (fs::path(run_.directory) / "final").string();
  options.types = run_.types;
  options.companions = run_.companions;
  if (run_.frozen != nullptr) run_.frozen->verify_weights();
  ConsolePhase phase(console_, "saving final");
  const std::int64_t total = elements();
  read_elements_ = 0;
  const auto fetch = [&](const UnitLayout& unit, const ParameterTensor& tensor, std::int64_t begin,
                         std::span<float> out) {
    if (!tensor.trainable) return run_.frozen->read(unit, tensor.offset + begin, out);
    read_finite(step, StateField::kMaster, unit, tensor.offset + begin, out);
    phase.advance(read_elements_, total);
  };
  if (run_.model.adapter.is_there()) {
    write_adapter_directory({options.directory, run_.base_model, run_.types, run_.companions},
                            run_.model, run_.layout, fetch);
  } else {
    write_hf_directory(options, run_.model, run_.layout, fetch);
  }
  state_.end_reads();
  return options.directory;
}

}  // namespace terrace
