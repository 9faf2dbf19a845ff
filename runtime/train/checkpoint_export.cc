#include "runtime/train/checkpoint_export.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/half_arrays.h"
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
                      "name another directory for the model");
  }
  if (fs::is_empty(directory, failed)) return;
  throw ConfigError(fmt::format("{} has files in it, and they are not overwritten", directory),
                    "name a directory that is empty or does not exist yet");
}

void check_shards(const CheckpointExport& request, const ModelConfig& model) {
  if (!request.max_shard_bytes || !model.adapter.is_there()) return;
  throw ConfigError(fmt::format("--max-shard-size: {} holds an adapter, which is always one file",
                                request.checkpoint),
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

// Returns the model that an adapter was trained on, as the adapter's files name it.
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
  if (all_finite(values)) return;
  throw NotFinite(
      fmt::format("tensor {} of the checkpoint has values that are not finite", tensor.name),
      "export an earlier checkpoint");
}

// The target directory, and the unfinished one beside it that is renamed to it at the end.
struct ExportPaths {
  fs::path target;
  fs::path unfinished;
};

ExportPaths paths_for(const std::string& directory) {
  ExportPaths paths = {fs::absolute(directory).lexically_normal(), {}};
  if (!paths.target.has_filename()) paths.target = paths.target.parent_path();  // a slash ends it
  paths.unfinished = paths.target;
  paths.unfinished += ".writing";
  if (system_files().exists(paths.unfinished.string())) {
    throw ConfigError(
        fmt::format("{} exists: an export was not finished", paths.unfinished.string()),
        "remove it, or name another directory for the model");
  }
  return paths;
}

// Gives the directory its name, even where an empty directory already has it.
void finish(const ExportPaths& paths) {
  const int error = system_files().rename(paths.unfinished.string(), paths.target.string());
  if (error != 0) {
    throw IoError(
        {.operation = "rename", .path = paths.unfinished.string(), .error_number = error});
  }
  sync_directory(paths.target.parent_path().string());
}

}  // namespace

void export_checkpoint(const CheckpointExport& request, TrainConsole& console, Log& log) {
  check_target(request.directory);
  Checkpoint checkpoint(request.checkpoint);
  check_shards(request, checkpoint.model());
  const std::vector<UnitLayout> layout = parameter_layout(checkpoint.model());
  checkpoint.open(layout, {.model_directory = request.model_directory});
  const std::optional<TrainOptions> run = options_of_run(request.checkpoint, log);
  const ExportPaths paths = paths_for(request.directory);
  HfExportOptions options = {
      .directory = paths.unfinished.string(),
      .types = types_for(request, checkpoint, run),
      .companions = companions_for(request, checkpoint, run, log),
  };
  if (request.max_shard_bytes) options.max_shard_bytes = *request.max_shard_bytes;
  make_directories(paths.target.parent_path().string());
  try {
    ConsolePhase phase(console, fmt::format("writing {}", request.directory));
    const bool is_adapter = checkpoint.model().adapter.is_there();
    const std::int64_t total =
        parameter_count(is_adapter ? adapter_layout(checkpoint.model(), layout) : layout);
    std::int64_t done = 0;
    const auto fetch = [&](const UnitLayout& unit, const ParameterTensor& tensor,
                           std::int64_t begin, std::span<float> out) {
      checkpoint.read(StateField::kMaster, unit, tensor.offset + begin, out);
      expect_finite(tensor, out);
      phase.advance(done += std::ssize(out), total);
    };
    if (is_adapter) {
      write_adapter_directory(
          {options.directory, base_of(checkpoint, run), options.types, options.companions},
          checkpoint.model(), layout, fetch);
    } else {
      write_hf_directory(options, checkpoint.model(), layout, fetch);
    }
    finish(paths);
  } catch (...) {
    std::error_code ignored;  // only the first problem is reported
    fs::remove_all(paths.unfinished, ignored);
    throw;
  }
  console.say(fmt::format("{}: the weights of step {} as {}\n", request.directory,
                          checkpoint.progress().step, torch_name_of(options.types.usual)));
}

}  // namespace terrace
