#include "runtime/checkpoint/checkpoint.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/bytes.h"
#include "base/check.h"
#include "base/error.h"
#include "base/hash.h"
#include "runtime/checkpoint/durable_file.h"

namespace terrace {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kManifest = "manifest.json";
constexpr const char* kConfig = "config.json";
constexpr const char* kHash = "xxh3";
constexpr const char* kRemedy = "resume from an earlier checkpoint";
constexpr const char* kSchema = "terrace.checkpoint/1";
constexpr std::string_view kPrefix = "checkpoint-";
// Tensors pass through memory in pieces of this many elements.
constexpr std::int64_t kPieceElements = 1 << 20;

const char* file_prefix(StateField field) {
  switch (field) {
    case StateField::kMaster:
      return "master";
    case StateField::kMoment1:
      return "exp_avg";
    case StateField::kMoment2:
      return "exp_avg_sq";
  }
  return "";
}

std::string file_name(StateField field, const UnitLayout& unit) {
  return fmt::format("{}-{:05}.safetensors", file_prefix(field), unit.index);
}

std::uint64_t hash_file(const std::string& path, std::uint64_t& size_bytes) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) throw IoError({.operation = "open", .path = path, .error_number = errno});
  std::vector<std::byte> piece(4 * kMiB);
  StreamingHash hash;
  size_bytes = 0;
  for (;;) {
    const ssize_t got = ::read(file, piece.data(), piece.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) {
      const int error = errno;
      ::close(file);
      throw IoError({"read", path, size_bytes, piece.size(), error});
    }
    if (got == 0) break;
    hash.add(std::span(piece).first(static_cast<std::size_t>(got)));
    size_bytes += static_cast<std::uint64_t>(got);
  }
  ::close(file);
  return hash.value();
}

std::vector<std::uint64_t> shape_of(const ParameterTensor& tensor) {
  std::vector<std::uint64_t> shape = {static_cast<std::uint64_t>(tensor.rows)};
  if (!tensor.is_vector) shape.push_back(static_cast<std::uint64_t>(tensor.columns));
  return shape;
}

SafetensorsHeader header_of(const UnitLayout& unit) {
  SafetensorsHeader header;
  header.metadata["format"] = "pt";
  for (const ParameterTensor& tensor : unit.tensors) {
    SafetensorsTensor entry;
    entry.name = tensor.name;
    entry.type = SafetensorsType::kF32;
    entry.shape = shape_of(tensor);
    header.tensors.push_back(std::move(entry));
  }
  return header;
}

void write_unit(const std::string& path, StateField field, const UnitLayout& unit,
                FetchState fetch) {
  SafetensorsWriter writer(path, header_of(unit));
  std::vector<float> piece;
  for (std::int64_t at = 0; at < unit.elements; at += kPieceElements) {
    piece.resize(static_cast<std::size_t>(std::min(kPieceElements, unit.elements - at)));
    fetch(field, unit, at, piece);
    writer.append(std::as_bytes(std::span(piece)));
  }
  writer.finish();
}

std::optional<std::int64_t> step_of(const std::string& directory_name) {
  if (!directory_name.starts_with(kPrefix)) return std::nullopt;
  const std::string_view digits = std::string_view(directory_name).substr(kPrefix.size());
  std::int64_t step = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), step);
  if (error != std::errc{} || end != digits.data() + digits.size()) return std::nullopt;
  return step;
}

// Steps of the complete checkpoints, ascending.
std::vector<std::int64_t> complete_steps(const std::string& run_dir) {
  std::vector<std::int64_t> steps;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(run_dir, error)) {
    const auto step = step_of(entry.path().filename().string());
    if (step.has_value() && is_checkpoint(entry.path().string())) steps.push_back(*step);
  }
  std::sort(steps.begin(), steps.end());
  return steps;
}

std::string path_of_step(const std::string& run_dir, std::int64_t step) {
  return (fs::path(run_dir) / fmt::format("{}{}", kPrefix, step)).string();
}

// Renamed first, so that a half-removed checkpoint is none.
void remove_checkpoint(const std::string& directory) {
  const std::string path = directory + ".removing";
  fs::rename(directory, path);
  fs::remove_all(path);
}

// Of the manifest less its own checksum; its keys are sorted, so equal content is equal text.
std::string hash_of(const json& manifest) {
  const std::string text = manifest.dump();
  return fmt::format("{:016x}", hash_bytes(std::as_bytes(std::span(text.data(), text.size()))));
}

json listed(const std::string& directory, const std::string& name) {
  std::uint64_t size = 0;
  const std::uint64_t hash = hash_file((fs::path(directory) / name).string(), size);
  return {{"name", name}, {"size", size}, {kHash, fmt::format("{:016x}", hash)}};
}

json read_manifest(const std::string& directory) {
  const std::string path = (fs::path(directory) / kManifest).string();
  std::ifstream stream(path);
  if (!stream) {
    throw ConfigError(fmt::format("{} is not a checkpoint: it has no {}", directory, kManifest),
                      "give a checkpoint-N directory that was saved completely");
  }
  std::ostringstream text;
  text << stream.rdbuf();
  json manifest = json::parse(text.str(), nullptr, false);
  if (!manifest.is_object() || !manifest.contains("schema") || manifest["schema"] != kSchema) {
    throw CorruptData(fmt::format("{} is not a manifest of a checkpoint", path), kRemedy);
  }
  const json hash = manifest.value(kHash, json());
  manifest.erase(kHash);
  if (hash != hash_of(manifest)) {
    throw CorruptData(fmt::format("{} is not as it was written: its checksum differs", path),
                      kRemedy);
  }
  return manifest;
}

}  // namespace

std::string write_checkpoint(const std::string& run_dir, const CheckpointProgress& progress,
                             const ModelConfig& config, const std::vector<UnitLayout>& layout,
                             FetchState fetch) {
  const std::string final_path = path_of_step(run_dir, progress.step);
  const std::string path = final_path + ".writing";
  fs::remove_all(path);
  std::error_code error;
  // Not the run directory too: where that has vanished, the run ends.
  if (!fs::create_directory(path, error) && error) {
    throw IoError({.operation = "mkdir", .path = path, .error_number = error.value()});
  }
  json manifest = {{"schema", kSchema},
                   {"step", progress.step},
                   {"samples", progress.samples},
                   {"seed", progress.seed},
                   {"sequence_length", progress.sequence_length},
                   {"training_tokens", progress.training_tokens},
                   {"model", config.name},
                   {"files", json::array()}};
  for (const UnitLayout& unit : layout) {
    for (const StateField field : kStateFields) {
      const std::string name = file_name(field, unit);
      write_unit((fs::path(path) / name).string(), field, unit, fetch);
      manifest["files"].push_back(listed(path, name));
    }
  }
  write_durable_file((fs::path(path) / kConfig).string(), config.json);
  manifest["files"].push_back(listed(path, kConfig));
  manifest[kHash] = hash_of(manifest);
  write_durable_file((fs::path(path) / kManifest).string(), manifest.dump(1) + "\n");
  const std::string old_path = final_path + ".old";
  if (fs::exists(final_path)) fs::rename(final_path, old_path, error);
  if (!error) fs::rename(path, final_path, error);
  if (error) throw IoError({.operation = "rename", .path = path, .error_number = error.value()});
  sync_directory(run_dir);
  fs::remove_all(old_path);
  return final_path;
}

bool is_checkpoint(const std::string& directory) {
  return fs::exists(fs::path(directory) / kManifest);
}

std::optional<std::string> latest_checkpoint(const std::string& run_dir) {
  const std::vector<std::int64_t> steps = complete_steps(run_dir);
  if (steps.empty()) return std::nullopt;
  return path_of_step(run_dir, steps.back());
}

void recover_run_directory(const std::string& run_dir) {
  std::error_code error;
  std::vector<fs::path> left;
  for (const auto& entry : fs::directory_iterator(run_dir, error)) {
    const fs::path extension = entry.path().extension();
    const bool is_ours = step_of(entry.path().stem().string()).has_value();
    const bool is_left = extension == ".writing" || extension == ".old" || extension == ".removing";
    if (is_ours && is_left) left.push_back(entry.path());
  }
  for (const fs::path& path : left) {
    const fs::path whole = fs::path(path).replace_extension();
    if (path.extension() == ".old" && !fs::exists(whole)) {
      fs::rename(path, whole);
    } else {
      fs::remove_all(path);
    }
  }
}

void remove_later_checkpoints(const std::string& run_dir, std::int64_t step) {
  for (const std::int64_t other : complete_steps(run_dir)) {
    if (other > step) remove_checkpoint(path_of_step(run_dir, other));
  }
}

void remove_old_checkpoints(const std::string& run_dir, std::int64_t keep) {
  const std::vector<std::int64_t> steps = complete_steps(run_dir);
  const auto excess = static_cast<std::int64_t>(steps.size()) - keep;
  for (std::int64_t i = 0; i < excess; ++i) remove_checkpoint(path_of_step(run_dir, steps[i]));
}

Checkpoint::Checkpoint(const std::string& directory) : directory_(directory) {
  const json manifest = read_manifest(directory);
  try {
    progress_.step = manifest.at("step").get<std::int64_t>();
    progress_.samples = manifest.at("samples").get<std::int64_t>();
    progress_.seed = manifest.at("seed").get<std::uint64_t>();
    progress_.sequence_length = manifest.at("sequence_length").get<std::int64_t>();
    progress_.training_tokens = manifest.at("training_tokens").get<std::int64_t>();
    for (const json& file : manifest.at("files")) {
      listed_.push_back({file.at("name").get<std::string>(), file.at("size").get<std::uint64_t>(),
                         std::stoull(file.at(kHash).get<std::string>(), nullptr, 16)});
    }
  } catch (const std::exception& problem) {
    throw CorruptData(fmt::format("{}/{}: {}", directory, kManifest, problem.what()), kRemedy);
  }
  for (const ListedFile& file : listed_) {
    if (file.name == kConfig) verify(file);
  }
  model_ = load_model_config(directory);
}

void Checkpoint::verify(const ListedFile& file) const {
  const std::string path = (fs::path(directory_) / file.name).string();
  if (!fs::exists(path)) throw CorruptData(fmt::format("{} is gone", path), kRemedy);
  std::uint64_t size = 0;
  const std::uint64_t hash = hash_file(path, size);
  if (size == file.size_bytes && hash == file.hash) return;
  throw CorruptData(
      fmt::format("{} has {} bytes with checksum {:016x}, written were {} with {:016x}", path, size,
                  hash, file.size_bytes, file.hash),
      kRemedy);
}

void Checkpoint::open(const std::vector<UnitLayout>& layout) {
  for (const ListedFile& file : listed_) verify(file);
  files_.clear();
  for (const UnitLayout& unit : layout) {
    for (const StateField field : kStateFields) {
      const std::string name = file_name(field, unit);
      const std::string path = (fs::path(directory_) / name).string();
      if (std::none_of(listed_.begin(), listed_.end(),
                       [&name](const ListedFile& listed) { return listed.name == name; })) {
        throw ConfigError(fmt::format("{} has no {}", directory_, name),
                          "resume with the model that the checkpoint was made of");
      }
      auto file = std::make_unique<SafetensorsFile>(path);
      for (const ParameterTensor& tensor : unit.tensors) {
        const SafetensorsTensor* stored = file->find(tensor.name);
        if (stored == nullptr || stored->shape != shape_of(tensor)) {
          throw ConfigError(fmt::format("{} has no tensor {} of {} x {}", path, tensor.name,
                                        tensor.rows, tensor.columns),
                            "resume with the model that the checkpoint was made of");
        }
      }
      files_.push_back(std::move(file));
    }
  }
}

const SafetensorsFile& Checkpoint::file_of(StateField field, const UnitLayout& unit) const {
  return *files_.at(static_cast<std::size_t>(unit.index) * 3 + static_cast<std::size_t>(field));
}

void Checkpoint::read(StateField field, const UnitLayout& unit, std::int64_t begin,
                      std::span<float> out) const {
  const SafetensorsFile& file = file_of(field, unit);
  for_each_tensor_part(
      unit, begin, out,
      [&file](const ParameterTensor& tensor, std::int64_t first, std::span<float> part) {
        file.read(*file.find(tensor.name), static_cast<std::uint64_t>(first) * sizeof(float),
                  std::as_writable_bytes(part));
      });
}

}  // namespace terrace
