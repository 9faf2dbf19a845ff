#include "runtime/train/checkpoint_export.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/error.h"
#include "runtime/checkpoint/adapter_directory.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/checkpoint/hf_export.h"
#include "runtime/train/run_companions.h"
#include "runtime/train/run_record.h"
#include "runtime/train/train_setup.h"

namespace terrace {
namespace {

namespace fs = std::filesystem;

void check_target(const std::string& directory) {
  std::error_code failed;
  if (!fs::exists(directory, failed)) return;
  if (!fs::is_directory(directory, failed)) {
    throw ConfigError(fmt::format("{} is not a directory", directory),
                      "name another for the model");
  }
  if (fs::is_empty(directory, failed)) return;
  throw ConfigError(fmt::format("{} has files, and nothing is written over", directory),
                    "name a directory that is empty or not there yet");
}

void check_shards(const CheckpointExport& request, const ModelConfig& model) {
  if (!request.max_shard_bytes || !model.adapter.is_there()) return;
  throw ConfigError(
      fmt::format("--max-shard-size: {} is of an adapter, which is one file", request.checkpoint),
      "export it without --max-shard-size");
}

WeightTypes types_for(const CheckpointExport& request, const Checkpoint& checkpoint,
                      const std::optional<TrainOptions>& run) {
  TrainOptions options = run.value_or(TrainOptions());
  if (request.dtype != SaveType::kAuto) options.run.save_dtype = request.dtype;
  std::optional<WeightTypes> loaded = checkpoint.progress().loaded_types;
  if (checkpoint.model().adapter.is_there()) loaded = WeightTypes{.usual = DType::kF32};
  return result_types_for(options, loaded, compute_type_for(options.precision));
}

// The model that an adapter was trained on, as its files name it.
std::string base_of(const Checkpoint& checkpoint, const std::optional<TrainOptions>& run) {
  const std::optional<FrozenReference>& frozen = checkpoint.progress().frozen;
  if (frozen && frozen->is_model_directory()) return frozen->directory;
  return run ? run->model.model : std::string();
}

std::vector<HfCompanion> companions_for(const CheckpointExport& request,
                                        const Checkpoint& checkpoint,
                                        const std::optional<TrainOptions>& run, Log& log) {
  const bool is_bytes = run && trained_on_bytes(*run, checkpoint.model().vocabulary);
  TrainOptions options = run.value_or(TrainOptions());
  if (!request.model_directory.empty()) options.model.model = request.model_directory;
  return companions_of_run({options, is_bytes, checkpoint.model().adapter.is_there()}, log);
}

void expect_finite(const ParameterTensor& tensor, std::span<const float> values) {
  if (std::ranges::all_of(values, [](float value) { return std::isfinite(value); })) return;
  throw NotFinite(fmt::format("tensor {} of the checkpoint is not finite", tensor.name),
                  "export an earlier checkpoint");
}

std::int64_t elements_of(const std::vector<UnitLayout>& layout) {
  std::int64_t count = 0;
  for (const UnitLayout& unit : layout) {
    for (const ParameterTensor& tensor : unit.tensors) count += tensor.elements();
  }
  return count;
}

// A directory beside the one that is asked for, which is renamed to it at the end. What is left of
// an export that did not come to its end is removed.
fs::path unfinished(const std::string& directory) {
  fs::path path = fs::absolute(directory).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();  // of a slash at the end
  path += ".writing";
  return path;
}

void publish(const fs::path& written, const std::string& directory) {
  fs::path target = fs::absolute(directory).lexically_normal();
  if (!target.has_filename()) target = target.parent_path();
  fs::rename(written, target);  // also over a directory that is empty
  sync_directory(target.parent_path().string());
}

}  // namespace

void export_checkpoint(const CheckpointExport& request, TrainConsole& console, Log& log) {
  check_target(request.directory);
  Checkpoint checkpoint(request.checkpoint);
  check_shards(request, checkpoint.model());
  const std::vector<UnitLayout> layout = parameter_layout(checkpoint.model());
  checkpoint.open(layout, {.model_directory = request.model_directory});
  const std::optional<TrainOptions> run = options_of_run(request.checkpoint, log);
  const fs::path written = unfinished(request.directory);
  HfExportOptions options = {
      .directory = written.string(),
      .types = types_for(request, checkpoint, run),
      .companions = companions_for(request, checkpoint, run, log),
  };
  if (request.max_shard_bytes) options.max_shard_bytes = *request.max_shard_bytes;
  try {
    fs::remove_all(written);
    fs::create_directories(written.parent_path());
    ConsolePhase phase(console, fmt::format("writing {}", request.directory));
    const std::int64_t total = elements_of(layout);
    std::int64_t done = 0;
    const auto fetch = [&](const UnitLayout& unit, const ParameterTensor& tensor,
                           std::int64_t begin, std::span<float> out) {
      checkpoint.read(StateField::kMaster, unit, tensor.offset + begin, out);
      expect_finite(tensor, out);
      phase.advance(done += std::ssize(out), total);
    };
    if (checkpoint.model().adapter.is_there()) {
      write_adapter_directory(
          {options.directory, base_of(checkpoint, run), options.types, options.companions},
          checkpoint.model(), layout, fetch);
    } else {
      write_hf_directory(options, checkpoint.model(), layout, fetch);
    }
    publish(written, request.directory);
  } catch (const fs::filesystem_error& error) {
    throw IoError({.operation = "export to",
                   .path = error.path1().string(),
                   .error_number = error.code().value()});
  }
  console.say(fmt::format("{}: the weights of step {} as {}\n", request.directory,
                          checkpoint.progress().step, torch_name_of(options.types.usual)));
}

}  // namespace terrace
