#include "runtime/train/gradient_errors.h"

#include <fmt/format.h>

#include <array>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

#include "base/hash.h"

namespace terrace {
namespace {

// Returns a hash of the elements whose errors are kept: for each chunk its unit, and the elements
// of the unit that it has. It is the same for all ranks.
std::uint64_t hash_of_chunks(const StepModel& model) {
  StreamingHash hash;
  for (std::int32_t group = 0; group < model.group_count(); ++group) {
    const ParameterGroup& of = model.groups.at(static_cast<std::size_t>(group));
    const std::int64_t chunks = model.home_chunks(StateClass::kErrors, group);
    for (std::int64_t chunk = 0; chunk < chunks; ++chunk) {
      const std::array<std::int64_t, 3> numbers = {
          of.unit, of.first_element + model.chunk_begin(group, chunk),
          model.chunk_size(group, chunk)};
      hash.add(std::as_bytes(std::span(numbers)));
    }
  }
  return hash.value();
}

std::string path_of_errors(const Checkpoint& checkpoint, std::int32_t rank) {
  return (std::filesystem::path(checkpoint.directory()) / error_file_name(rank)).string();
}

}  // namespace

std::optional<GradientErrors> gradient_errors_of(const StepModel& model) {
  if (!model.keeps_errors()) return std::nullopt;
  GradientErrors errors;
  errors.data_ranks = model.zero.ranks;
  errors.tensor_ranks = model.tensor.ranks;
  errors.virtual_stages = model.pipeline.virtual_stages;
  if (model.pipeline.stages > 1) errors.piece_begins = model.pipeline.piece_begins;
  errors.chunks_hash = hash_of_chunks(model);
  for (std::int32_t stage = 0; stage < model.pipeline.stages; ++stage) {
    errors.stage_bytes.push_back(errors_bytes(model, stage));
  }
  return errors;
}

std::uint64_t errors_in_checkpoint(const StepModel& model) {
  const std::optional<GradientErrors> errors = gradient_errors_of(model);
  return errors ? error_files_bytes(*errors) : 0;
}

void load_errors(Checkpoint& checkpoint, const StepModel& model, TrainingState& state,
                 TrainConsole& console) {
  const std::optional<GradientErrors>& saved = checkpoint.gradient_errors();
  const std::optional<GradientErrors> own = gradient_errors_of(model);
  if (!own && !saved) return;
  if (!own) return console.say("the checkpoint's errors of coded gradients are not used");
  if (!saved) {
    return console.say("the checkpoint has no errors of coded gradients, so they start from zero");
  }
  if (*own != *saved) {
    return console.say(
        "the checkpoint's errors of coded gradients are of another mesh or another division of the "
        "model, so they start from zero");
  }
  if (state.errors_bytes() == 0) return;
  const std::int32_t rank = model.rank_of(model.pipeline.stage, model.zero.rank, model.tensor.rank);
  const std::unique_ptr<OpenFile> file = checkpoint.open_errors(rank);
  const std::string path = path_of_errors(checkpoint, rank);
  state.write_errors(
      [&](std::size_t first, std::span<std::byte> part) { read_fully(*file, path, first, part); });
}

}  // namespace terrace
