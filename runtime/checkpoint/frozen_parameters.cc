#include "runtime/checkpoint/frozen_parameters.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "runtime/checkpoint/durable_file.h"
#include "runtime/checkpoint/hf_weight_files.h"
#include "runtime/checkpoint/safetensors.h"
#include "runtime/checkpoint/weight_state.h"

namespace terrace {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kFolder = "frozen";
constexpr std::int64_t kFrozenPartElements = 1 << 20;
constexpr std::size_t kCachedFrozenPieces = 16;
constexpr const char* kFilesRemedy =
    "restore the directory as it was, or start another run from the model's weights";

std::string file_name(const UnitLayout& unit) {
  return fmt::format("frozen-{:05}.safetensors", unit.index);
}

std::vector<const ParameterTensor*> frozen_of(const UnitLayout& unit) {
  std::vector<const ParameterTensor*> tensors;
  for (const ParameterTensor& tensor : unit.tensors) {
    if (!tensor.trainable) tensors.push_back(&tensor);
  }
  return tensors;
}

// Weights of a model directory, which stay open.
class FrozenWeights final : public StateSource {
 public:
  explicit FrozenWeights(std::unique_ptr<HfDirectory> weights)
      : weights_(std::move(weights)), state_(*weights_) {}
  void read(StateField field, const UnitLayout& unit, std::int64_t begin,
            std::span<float> out) const override {
    state_.read(field, unit, begin, out);
  }

 private:
  std::unique_ptr<HfDirectory> weights_;
  WeightState state_;
};

// The files that a run has stored itself.
class FrozenFiles final : public StateSource {
 public:
  FrozenFiles(const FrozenReference& reference, const std::string& directory, FileSystem& disk)
      : cache_(kCachedFrozenPieces) {
    for (const ListedFile& file : reference.files) {
      files_.push_back(std::make_unique<SafetensorsFile>(
          (fs::path(directory) / file.name).string(),
          open_listed(file, {directory, disk, cache_, kFilesRemedy})));
    }
  }
  void read(StateField field, const UnitLayout& unit, std::int64_t begin,
            std::span<float> out) const override {
    TERRACE_CHECK(field == StateField::kMaster);
    for_each_tensor_part(
        unit, begin, out,
        [&](const ParameterTensor& tensor, std::int64_t first, std::span<float> part) {
          const auto [file, stored] = find(tensor);
          file->read(*stored, static_cast<std::uint64_t>(first) * sizeof(float),
                     std::as_writable_bytes(part));
        });
  }

 private:
  std::pair<const SafetensorsFile*, const SafetensorsTensor*> find(
      const ParameterTensor& tensor) const {
    for (const auto& file : files_) {
      const SafetensorsTensor* const stored = file->find(tensor.name);
      if (stored == nullptr) continue;
      if (stored->elements() == static_cast<std::uint64_t>(tensor.elements())) {
        return {file.get(), stored};
      }
    }
    throw CorruptData(fmt::format("the frozen parameter {} is in no file of its run", tensor.name),
                      kFilesRemedy);
  }

  PieceCache cache_;
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
};

std::string remedy_for(const std::string& directory) {
  return fmt::format("restore {} as it was when the run began, or give a copy of it as --model",
                     directory);
}

void verify_weights(const FrozenReference& reference, const FrozenSearch& search,
                    const HfDirectory& weights) {
  std::int32_t number = 0;
  for (const auto& [name, hash] : reference.tensors) {
    if (number++ % search.ranks != search.rank || weights.hash_of(name) == hash) continue;
    throw CorruptData(fmt::format("{}: the frozen tensor {} has changed since {} was saved",
                                  weights.file_of(name), name, search.checkpoint),
                      remedy_for(reference.directory));
  }
}

// The reference that opened weights must match, and its context. Borrows all.
struct Verified {
  const FrozenReference& reference;
  const FrozenSearch& search;
  const ModelConfig& config;
  FileSystem& disk;
};

std::unique_ptr<StateSource> open_weights(const std::string& directory, const Verified& as) {
  SilentLog log;
  std::unique_ptr<HfDirectory> weights;
  try {
    weights = std::make_unique<HfDirectory>(directory, as.config, parameter_layout(as.config), log,
                                            as.disk);
  } catch (const ConfigError& problem) {
    throw CorruptData(fmt::format("the frozen parameters of {} have changed: {}",
                                  as.search.checkpoint, problem.what()),
                      remedy_for(as.reference.directory));
  }
  verify_weights(as.reference, as.search, *weights);
  return std::make_unique<FrozenWeights>(std::move(weights));
}

FileHashes write_unit(const std::string& path, const UnitLayout& unit, const StateSource& source,
                      FileSystem& disk) {
  SafetensorsHeader header;
  header.metadata["format"] = "pt";
  const std::vector<const ParameterTensor*> frozen = frozen_of(unit);
  for (const ParameterTensor* const tensor : frozen) {
    SafetensorsTensor entry;
    entry.name = tensor->name;
    entry.type = SafetensorsType::kF32;
    entry.shape = {static_cast<std::uint64_t>(tensor->rows)};
    if (!tensor->is_vector) entry.shape.push_back(static_cast<std::uint64_t>(tensor->columns));
    header.tensors.push_back(std::move(entry));
  }
  FileHasher hasher;
  SafetensorsWriter writer(path, header, SafetensorsWriter::kDataAlignment, disk, &hasher);
  std::vector<float> part;
  for (const ParameterTensor* const tensor : frozen) {
    for (std::int64_t at = 0; at < tensor->elements(); at += kFrozenPartElements) {
      part.resize(static_cast<std::size_t>(std::min(kFrozenPartElements, tensor->elements() - at)));
      source.read(StateField::kMaster, unit, tensor->offset + at, part);
      writer.append(std::as_bytes(std::span(part)));
    }
  }
  writer.finish();
  return hasher.finish();
}

}  // namespace

std::vector<std::string> frozen_parameters(const std::vector<UnitLayout>& layout) {
  std::vector<std::string> names;
  for (const UnitLayout& unit : layout) {
    for (const ParameterTensor* const tensor : frozen_of(unit)) names.push_back(tensor->name);
  }
  return names;
}

FrozenReference refer_to_weights(const std::string& directory, const HfDirectory& weights,
                                 const std::vector<UnitLayout>& layout) {
  FrozenReference reference = {frozen_parameters(layout),
                               fs::absolute(directory).lexically_normal().string()};
  for (const UnitLayout& unit : layout) {
    for (const ParameterTensor* const tensor : frozen_of(unit)) {
      if (reference.tensors.contains(tensor->stored_name)) continue;
      reference.tensors[tensor->stored_name] = weights.hash_of(tensor->stored_name);
    }
  }
  return reference;
}

FrozenReference store_frozen(const std::string& run_dir, const std::vector<UnitLayout>& layout,
                             const StateSource& source, FileSystem& disk) {
  const std::string directory = (fs::path(run_dir) / kFolder).string();
  if (!disk.exists(directory)) {
    const int problem = disk.make_directory(directory);
    if (problem != 0) {
      throw IoError({.operation = "mkdir", .path = directory, .error_number = problem});
    }
  }
  FrozenReference reference = {frozen_parameters(layout), kFolder};
  for (const UnitLayout& unit : layout) {
    if (frozen_of(unit).empty()) continue;
    const std::string path = (fs::path(directory) / file_name(unit)).string();
    reference.files.push_back({file_name(unit), write_unit(path, unit, source, disk)});
  }
  sync_directory(run_dir, disk);
  return reference;
}

std::string to_json(const FrozenReference& reference) {
  json result = {{"parameters", reference.parameters}, {"directory", reference.directory}};
  if (reference.is_model_directory()) {
    result["tensors"] = json::object();
    for (const auto& [name, hash] : reference.tensors) result["tensors"][name] = to_hex(hash);
    return result.dump();
  }
  result["files"] = json::array();
  for (const ListedFile& file : reference.files)
    result["files"].push_back(json::parse(to_json(file)));
  return result.dump();
}

FrozenReference parse_frozen_reference(const std::string& text) {
  const json listed = json::parse(text);
  FrozenReference reference;
  reference.parameters = listed.at("parameters").get<std::vector<std::string>>();
  reference.directory = listed.at("directory").get<std::string>();
  if (listed.contains("files")) {
    for (const json& file : listed.at("files")) {
      reference.files.push_back(parse_listed_file(file.dump()));
    }
    return reference;
  }
  for (const auto& [name, hash] : listed.at("tensors").items()) {
    reference.tensors[name] = from_hex(hash.get<std::string>());
  }
  return reference;
}

std::unique_ptr<StateSource> open_frozen(FrozenReference& reference, const FrozenSearch& search,
                                         const ModelConfig& config, FileSystem& disk) {
  if (!reference.is_model_directory()) {
    const fs::path run_dir = fs::absolute(search.checkpoint).lexically_normal().parent_path();
    const std::string directory = (run_dir / reference.directory).string();
    return std::make_unique<FrozenFiles>(reference, directory, disk);
  }
  std::optional<CorruptData> damage;  // of the first directory with weights
  for (const std::string& directory : {reference.directory, search.model_directory}) {
    if (directory.empty() || !has_hf_weights(directory)) continue;
    try {
      auto weights = open_weights(directory, {reference, search, config, disk});
      reference.directory = fs::absolute(directory).lexically_normal().string();
      return weights;
    } catch (const CorruptData& problem) {
      if (!damage) damage = problem;
    }
  }
  if (damage) throw CorruptData(*damage);
  throw EnvironmentError(
      fmt::format("the frozen parameters of {} are the weights in {}, which no longer exist",
                  search.checkpoint, reference.directory),
      remedy_for(reference.directory));
}

}  // namespace terrace
