#include "runtime/checkpoint/checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <utility>

#include "base/bytes.h"
#include "base/check.h"
#include "base/error.h"
#include "base/hash.h"
#include "base/json_depth.h"
#include "runtime/checkpoint/adapter_manifest.h"
#include "runtime/checkpoint/durable_file.h"
#include "runtime/checkpoint/json_number.h"
#include "runtime/model/adapter_patterns.h"

namespace terrace {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kManifest = "manifest.json";
constexpr const char* kConfig = "config.json";
constexpr const char* kHash = "xxh3";
constexpr const char* kDataHash = "data_xxh3";
constexpr const char* kOptimizer = "optimizer";
constexpr const char* kFrozen = "frozen";
constexpr const char* kAdapter = "adapter";
constexpr const char* kEvaluations = "evaluations";
constexpr const char* kAutomatic = "automatic";
constexpr const char* kRankMicroBatches = "rank_micro_batches";
constexpr const char* kNoise = "gradient_noise";
constexpr const char* kErrors = "gradient_errors";
constexpr const char* kRemedy = kEarlierCheckpointRemedy;
// The second version has content that readers of the first version would misunderstand: the state
// of an optimizer other than the first rule, or frozen parameters. A checkpoint with neither is
// written in the first version. Errors of coded gradients need no other version: a reader that does
// not know them trains on correctly, as if no codes had lost anything so far.
constexpr const char* kFirstSchema = "terrace.checkpoint/1";
constexpr const char* kSecondSchema = "terrace.checkpoint/2";
constexpr const char* kSchemas = "terrace.checkpoint/";  // of any version
constexpr std::string_view kPrefix = "checkpoint-";
// Threads that read a part of a file together are within a few pieces of each other.
constexpr std::size_t kCachedPieces = 16;

// Returns the name of the file that holds one field of a unit. A slot has torch.optim's name for
// it.
std::string file_name(StateField field, const UnitLayout& unit, const UpdateRule& rule) {
  const std::optional<std::size_t> slot = slot_of(field);
  const std::string_view prefix = slot ? rule.slots[*slot].name : "master";
  return fmt::format("{}-{:05}.safetensors", prefix, unit.index);
}

// Returns the manifest's update rule. Manifests without one are from versions that had only the
// first rule.
const UpdateRule& rule_of(const json& manifest) {
  const auto name = manifest.value(kOptimizer, std::string(update_rules().front()->name));
  const UpdateRule* rule = find_update_rule(name);
  if (rule == nullptr) throw std::invalid_argument(fmt::format("{} is '{}'", kOptimizer, name));
  return *rule;
}

std::string path_in(const std::string& directory, std::string_view name) {
  return (fs::path(directory) / name).string();
}

// Throws IoError if the error number is not 0.
void expect_done(const char* operation, const std::string& path, int error_number) {
  if (error_number == 0) return;
  throw IoError({.operation = operation, .path = path, .error_number = error_number});
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
    if (!tensor.trainable) continue;
    SafetensorsTensor entry;
    entry.name = tensor.name;
    entry.type = SafetensorsType::kF32;
    entry.shape = shape_of(tensor);
    header.tensors.push_back(std::move(entry));
  }
  return header;
}

FileHashes write_unit(const std::string& path, StateField field, const UnitLayout& unit,
                      FetchState fetch, FileSystem& disk) {
  FileHasher hasher;
  SafetensorsWriter writer(path, header_of(unit), SafetensorsWriter::kDataAlignment, disk, &hasher);
  std::vector<float> part;
  for (const auto& [begin, end] : unit.trained_spans()) {
    for (std::int64_t at = begin; at < end; at += kCheckpointPieceElements) {
      part.resize(static_cast<std::size_t>(std::min(kCheckpointPieceElements, end - at)));
      fetch(field, unit, at, part);
      writer.append(std::as_bytes(std::span(part)));
    }
  }
  writer.finish();
  return hasher.finish();
}

std::string name_of_step(std::int64_t step) { return fmt::format("{}{}", kPrefix, step); }

// Returns the step in a name that write_checkpoint() gives; none for any other name.
std::optional<std::int64_t> step_of(const std::string& directory_name) {
  if (!directory_name.starts_with(kPrefix)) return std::nullopt;
  const std::string_view digits = std::string_view(directory_name).substr(kPrefix.size());
  std::int64_t step = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), step);
  const bool is_step = error == std::errc{} && step > 0 && directory_name == name_of_step(step);
  return is_step ? std::optional(step) : std::nullopt;
}

// Returns the steps of the complete checkpoints, ascending.
std::vector<std::int64_t> complete_steps(const std::string& run_dir, FileSystem& disk) {
  std::vector<std::int64_t> steps;
  for (const std::string& name : disk.list(run_dir)) {
    const auto step = step_of(name);
    if (step.has_value() && is_checkpoint(path_in(run_dir, name), disk)) steps.push_back(*step);
  }
  std::sort(steps.begin(), steps.end());
  return steps;
}

std::string path_of_step(const std::string& run_dir, std::int64_t step) {
  return path_in(run_dir, name_of_step(step));
}

// Renames the directory first, so that a half-removed checkpoint does not count as one. Syncs the
// rename, so that this also holds when the power is cut: without it the removals might reach the
// drive before the rename.
void remove_checkpoint(const std::string& run_dir, std::int64_t step, FileSystem& disk) {
  const std::string directory = path_of_step(run_dir, step);
  const std::string path = directory + ".removing";
  expect_done("rename", directory, disk.rename(directory, path));
  sync_directory(run_dir, disk);
  expect_done("remove", path, disk.remove(path));
}

// Returns the hash of a manifest without its own checksum. Its keys are sorted, so equal content is
// equal text.
std::string hash_of(const json& manifest) {
  const std::string text = manifest.dump();
  return fmt::format("{:016x}", hash_bytes(std::as_bytes(std::span(text.data(), text.size()))));
}

json read_manifest(const std::string& directory, FileSystem& disk) {
  const std::string path = path_in(directory, kManifest);
  if (!disk.exists(path)) {
    throw ConfigError(fmt::format("{} is not a checkpoint: it has no {}", directory, kManifest),
                      "give a checkpoint-N directory that was saved completely");
  }
  const std::string text = read_whole_file(disk, path);
  json manifest;
  if (!nests_deeper(text)) manifest = json::parse(text, nullptr, false);
  const bool has_schema =
      manifest.is_object() && manifest.contains("schema") && manifest["schema"].is_string();
  const std::string schema = has_schema ? manifest["schema"].get<std::string>() : "";
  const bool is_known = schema == kFirstSchema || schema == kSecondSchema;
  if (!is_known && schema.starts_with(kSchemas)) {
    throw ConfigError(fmt::format("{} is written as {}, but this version reads only {} and {}",
                                  directory, schema, kFirstSchema, kSecondSchema),
                      "resume with the version of Terrace that saved it, or a newer one");
  }
  if (!is_known) {
    throw CorruptData(fmt::format("{} is not a manifest of a checkpoint", path), kRemedy);
  }
  const json hash = manifest.value(kHash, json());
  manifest.erase(kHash);
  if (hash != hash_of(manifest)) {
    throw CorruptData(
        fmt::format("{} is not the file that was written: its checksum differs", path), kRemedy);
  }
  return manifest;
}

// Returns a whole number that counts something.
std::int64_t parse_count(const json& manifest, const char* key, std::int64_t least) {
  constexpr auto kMost = static_cast<std::uint64_t>(std::int64_t{1} << 53);
  const json& value = manifest.at(key);
  const bool is_count = value.is_number_unsigned() && value.get<std::uint64_t>() <= kMost &&
                        value.get<std::int64_t>() >= least;
  if (!is_count) throw std::invalid_argument(fmt::format("{} is {}", key, value.dump()));
  return value.get<std::int64_t>();
}

std::string name_of_directory(const std::string& directory) {
  const fs::path path = fs::path(directory).lexically_normal();
  return (path.has_filename() ? path : path.parent_path()).filename().string();
}

json listed(const LossScaleState& state) {
  return {{"scale", state.scale},
          {"good_steps", state.good_steps},
          {"overflows_left", state.overflows_left},
          {"skipped_steps", state.skipped_steps}};
}

LossScaleState parse_loss_scale(const json& listed) {
  return {.scale = listed.at("scale").get<float>(),
          .good_steps = whole_number<std::int32_t>(listed.at("good_steps")),
          .overflows_left = whole_number<std::int32_t>(listed.at("overflows_left")),
          .skipped_steps = whole_number<std::int64_t>(listed.at("skipped_steps"))};
}

json listed(const WeightTypes& types) {
  json others = json::object();
  for (const auto& [parameter, dtype] : types.others) others[parameter] = torch_name_of(dtype);
  return {{"usual", torch_name_of(types.usual)}, {"others", others}};
}

WeightTypes parse_weight_types(const json& listed) {
  WeightTypes types;
  types.usual = parse_torch_name(listed.at("usual").get<std::string>());
  for (const auto& [parameter, name] : listed.at("others").items()) {
    types.others[parameter] = parse_torch_name(name.get<std::string>());
  }
  return types;
}

void check_room(const std::string& run_dir, const std::string& path, const CheckpointedModel& model,
                FileSystem& disk) {
  const std::uint64_t needed = checkpoint_bytes(model);
  const std::optional<std::uint64_t> free = disk.free_bytes(run_dir);
  if (free.value_or(needed) >= needed) return;
  throw IoError({.operation = "write", .path = path, .size = needed, .error_number = ENOSPC},
                fmt::format("only {} are free; {}", format_size(*free), kFullDiskRemedy));
}

json manifest_of(const CheckpointProgress& progress, const CheckpointedModel& model) {
  const bool is_first_version = &model.rule == update_rules().front() && !progress.frozen;
  json manifest = {{"schema", is_first_version ? kFirstSchema : kSecondSchema},
                   {"step", progress.step},
                   {"samples", progress.samples},
                   {"seed", progress.seed},
                   {"sequence_length", progress.sequence_length},
                   {"training_tokens", progress.training_tokens},
                   {"model", model.config.name},
                   {kOptimizer, model.rule.name},
                   {"files", json::array()}};
  if (progress.loss_scale) manifest["loss_scale"] = listed(*progress.loss_scale);
  if (!progress.device.empty()) manifest["device"] = progress.device;
  if (!progress.arithmetic.empty()) manifest["arithmetic"] = progress.arithmetic;
  if (progress.data_hash) manifest[kDataHash] = to_hex(*progress.data_hash);
  if (progress.loaded_types) manifest["loaded_types"] = listed(*progress.loaded_types);
  if (progress.evaluations) manifest[kEvaluations] = json::parse(to_json(*progress.evaluations));
  if (progress.frozen) manifest[kFrozen] = json::parse(to_json(*progress.frozen));
  if (model.config.adapter.is_there())
    manifest[kAdapter] = json::parse(to_json(model.config.adapter));
  if (progress.gradient_noise) manifest[kNoise] = json::parse(to_json(*progress.gradient_noise));
  if (model.errors != nullptr) manifest[kErrors] = json::parse(to_json(model.errors->of));
  if (progress.is_automatic) manifest[kAutomatic] = true;
  if (!progress.rank_micro_batches.empty()) {
    manifest[kRankMicroBatches] = progress.rank_micro_batches;
  }
  return manifest;
}

// Writes all files, the manifest last.
void write_files(const std::string& path, const CheckpointProgress& progress,
                 const CheckpointedModel& model, FetchState fetch, FileSystem& disk) {
  json manifest = manifest_of(progress, model);
  std::map<std::string, FileHashes> hashes;
  const std::vector<StateField> fields = state_fields(model.rule.slots.size());
  for (const UnitLayout* unit : model.units()) {
    for (const StateField field : fields) {
      const std::string name = file_name(field, *unit, model.rule);
      hashes.emplace(name, write_unit(path_in(path, name), field, *unit, fetch, disk));
    }
  }
  for (const UnitLayout& unit : model.layout) {
    if (!unit.trains()) continue;
    for (const StateField field : fields) {
      const std::string name = file_name(field, unit, model.rule);
      manifest["files"].push_back(json::parse(to_json(ListedFile{name, hashes.at(name)})));
    }
  }
  if (model.errors != nullptr) {
    for (const ListedFile& file : write_error_files(path, *model.errors, disk)) {
      manifest["files"].push_back(json::parse(to_json(file)));
    }
  }
  const std::string config_text = config_json_to_save(model.config);
  write_durable_file(path_in(path, kConfig), config_text, disk);
  const auto text = std::as_bytes(std::span(config_text));
  manifest["files"].push_back(
      json::parse(to_json(ListedFile{kConfig, {text.size(), hash_bytes(text), {}}})));
  manifest[kHash] = hash_of(manifest);
  write_durable_file(path_in(path, kManifest), manifest.dump(1) + "\n", disk);
}

// Gives the written directory its name. A checkpoint of the same step is moved aside first, and
// moved back if that fails.
void commit_checkpoint(const std::string& run_dir, const std::string& path,
                       const std::string& final_path, FileSystem& disk) {
  const std::string old_path = final_path + ".old";
  const bool replaces = disk.exists(final_path);
  if (replaces) expect_done("rename", final_path, disk.rename(final_path, old_path));
  const int error = disk.rename(path, final_path);
  if (error != 0 && replaces) disk.rename(old_path, final_path);
  expect_done("rename", path, error);
  sync_directory(run_dir, disk);
  expect_done("remove", old_path, disk.remove(old_path));
}

}  // namespace

std::string write_checkpoint(const std::string& run_dir, const CheckpointProgress& progress,
                             const CheckpointedModel& model, FetchState fetch, FileSystem& disk) {
  const std::string final_path = path_of_step(run_dir, progress.step);
  const std::string path = final_path + ".writing";
  expect_done("remove", path, disk.remove(path));
  check_room(run_dir, path, model, disk);
  // Does not make the run directory: if that has vanished, the run ends.
  expect_done("mkdir", path, disk.make_directory(path));
  try {
    write_files(path, progress, model, fetch, disk);
    commit_checkpoint(run_dir, path, final_path, disk);
  } catch (...) {
    disk.remove(path);  // the first error is thrown; the next start removes the rest
    throw;
  }
  return final_path;
}

bool is_checkpoint(const std::string& directory, FileSystem& disk) {
  return disk.exists(path_in(directory, kManifest));
}

std::optional<std::string> latest_checkpoint(const std::string& run_dir, FileSystem& disk) {
  const std::vector<std::int64_t> steps = complete_steps(run_dir, disk);
  if (steps.empty()) return std::nullopt;
  return path_of_step(run_dir, steps.back());
}

std::optional<std::string> earlier_checkpoint(const std::string& run_dir, FileSystem& disk) {
  const std::vector<std::int64_t> steps = complete_steps(run_dir, disk);
  if (steps.size() < 2) return std::nullopt;
  return path_of_step(run_dir, steps[steps.size() - 2]);
}

void recover_run_directory(const std::string& run_dir, FileSystem& disk) {
  for (const std::string& name : disk.list(run_dir)) {
    const fs::path path = fs::path(run_dir) / name;
    const fs::path extension = path.extension();
    const bool is_ours = step_of(path.stem().string()).has_value();
    const bool is_left = extension == ".writing" || extension == ".old" || extension == ".removing";
    if (!is_ours || !is_left) continue;
    const std::string whole = fs::path(path).replace_extension().string();
    if (extension == ".old" && !disk.exists(whole)) {
      expect_done("rename", path.string(), disk.rename(path.string(), whole));
    } else {
      expect_done("remove", path.string(), disk.remove(path.string()));
    }
  }
  // The run of a checkpoint may have died before its last sync. A run that goes on from that
  // checkpoint must be able to find it again.
  sync_directory(run_dir, disk);
}

std::vector<std::string> later_checkpoints(const std::string& run_dir, std::int64_t step,
                                           FileSystem& disk) {
  std::vector<std::string> names;
  for (const std::int64_t other : complete_steps(run_dir, disk)) {
    if (other > step) names.push_back(fs::path(path_of_step(run_dir, other)).filename().string());
  }
  return names;
}

void remove_later_checkpoints(const std::string& run_dir, std::int64_t step, FileSystem& disk) {
  for (const std::int64_t other : complete_steps(run_dir, disk)) {
    if (other > step) remove_checkpoint(run_dir, other, disk);
  }
}

void remove_old_checkpoints(const std::string& run_dir, std::int64_t keep, FileSystem& disk,
                            std::int64_t best_step) {
  const std::vector<std::int64_t> steps = complete_steps(run_dir, disk);
  const auto excess = static_cast<std::int64_t>(steps.size()) - keep;
  for (std::int64_t i = 0; i < excess; ++i) {
    if (steps[i] != best_step) remove_checkpoint(run_dir, steps[i], disk);
  }
}

std::vector<std::int64_t> automatic_checkpoints(const std::string& run_dir, FileSystem& disk) {
  std::vector<std::int64_t> steps = complete_steps(run_dir, disk);
  std::erase_if(steps, [&](std::int64_t step) {
    try {
      return read_manifest(path_of_step(run_dir, step), disk).value(kAutomatic, json()) != true;
    } catch (const Error&) {  // it stays for somebody to look at
      return true;
    }
  });
  return steps;
}

void remove_old_automatic_checkpoints(const std::string& run_dir, std::int64_t keep,
                                      std::span<const std::int64_t> needed, FileSystem& disk) {
  const std::vector<std::int64_t> steps = automatic_checkpoints(run_dir, disk);
  const auto excess = static_cast<std::int64_t>(steps.size()) - keep;
  for (std::int64_t i = 0; i < excess; ++i) {
    if (std::ranges::count(needed, steps[i]) == 0) remove_checkpoint(run_dir, steps[i], disk);
  }
}

Checkpoint::Checkpoint(const std::string& directory, FileSystem& disk)
    : disk_(disk), directory_(directory), cache_(kCachedPieces) {
  const json manifest = read_manifest(directory, disk);
  AdapterOptions adapter;
  fingerprint_ = from_hex(hash_of(manifest));
  try {
    progress_.step = parse_count(manifest, "step", 1);
    progress_.samples = parse_count(manifest, "samples", 0);
    progress_.seed = whole_number<std::uint64_t>(manifest.at("seed"));
    progress_.sequence_length = parse_count(manifest, "sequence_length", 0);
    progress_.training_tokens = parse_count(manifest, "training_tokens", 0);
    if (manifest.contains("loss_scale")) {
      progress_.loss_scale = parse_loss_scale(manifest.at("loss_scale"));
    }
    rule_ = &rule_of(manifest);
    progress_.is_automatic = manifest.value(kAutomatic, false);
    progress_.device = manifest.value("device", "");
    progress_.arithmetic = manifest.value("arithmetic", "");
    if (manifest.contains(kRankMicroBatches)) {
      for (const json& count : manifest.at(kRankMicroBatches)) {
        progress_.rank_micro_batches.push_back(whole_number<std::int64_t>(count));
      }
    }
    if (manifest.contains(kNoise)) {
      progress_.gradient_noise = parse_noise_record(manifest.at(kNoise).dump());
    }
    if (manifest.contains(kDataHash)) {
      progress_.data_hash = from_hex(manifest.at(kDataHash).get<std::string>());
    }
    if (manifest.contains("loaded_types")) {
      progress_.loaded_types = parse_weight_types(manifest.at("loaded_types"));
    }
    if (manifest.contains(kEvaluations)) {
      progress_.evaluations = parse_evaluation_history(manifest.at(kEvaluations).dump());
    }
    if (manifest.contains(kFrozen)) {
      progress_.frozen = parse_frozen_reference(manifest.at(kFrozen).dump());
      frozen_names_ = progress_.frozen->parameters;
      std::ranges::sort(frozen_names_);
    }
    if (manifest.contains(kAdapter)) adapter = parse_adapter_options(manifest.at(kAdapter).dump());
    for (const json& file : manifest.at("files")) {
      listed_.push_back(parse_listed_file(file.dump()));
    }
    if (manifest.contains(kErrors)) {
      gradient_errors_ = parse_gradient_errors(manifest.at(kErrors).dump());
      check_error_files(*gradient_errors_, listed_);
    }
  } catch (const std::exception& problem) {
    throw CorruptData(fmt::format("{}/{}: {}", directory, kManifest, problem.what()), kRemedy);
  }
  // Its name decides which checkpoints are later, and are removed when a run goes on from this one.
  const std::string name = name_of_directory(directory);
  if (step_of(name).value_or(progress_.step) != progress_.step) {
    throw CorruptData(fmt::format("{} is the checkpoint of step {}", directory, progress_.step),
                      "rename it back, or to a name without a step");
  }
  load_model(name, std::move(adapter));
}

void Checkpoint::load_model(const std::string& name, AdapterOptions adapter) {
  const std::string config = path_in(directory_, kConfig);
  const auto listed = std::ranges::find(listed_, kConfig, &ListedFile::name);
  if (listed == listed_.end()) {
    throw CorruptData(fmt::format("{}/{} does not list {}", directory_, kManifest, kConfig),
                      kRemedy);
  }
  open_listed(*listed, {directory_, disk_, cache_, kRemedy});
  model_ = parse_saved_config(read_whole_file(disk_, config), config);
  model_.name = name;
  model_.adapter = std::move(adapter);
  if (model_.adapter.is_there()) {
    model_ = with_adapter_sizes(std::move(model_), path_in(directory_, kManifest));
  }
}

bool Checkpoint::is_frozen(const ParameterTensor& tensor) const {
  if (!progress_.frozen) return false;
  return std::ranges::binary_search(frozen_names_, tensor.name);
}

void Checkpoint::open_frozen(const FrozenSearch& search) {
  if (!progress_.frozen) return;
  FrozenSearch own = search;
  own.checkpoint = directory_;
  frozen_ = terrace::open_frozen(*progress_.frozen, own, model_, disk_);
}

// Checks the file of a unit's field, which has the tensors that train.
std::unique_ptr<SafetensorsFile> Checkpoint::checked(std::unique_ptr<OpenFile> opened,
                                                     const std::string& name,
                                                     const UnitLayout& unit) const {
  const std::string path = path_in(directory_, name);
  auto file = std::make_unique<SafetensorsFile>(path, std::move(opened));
  const auto count =
      std::ranges::count_if(unit.tensors, [&](const auto& tensor) { return !is_frozen(tensor); });
  if (std::ssize(file->header().tensors) != count) {
    throw ConfigError(fmt::format("{} has {} tensors, but the model has {} there", path,
                                  file->header().tensors.size(), count),
                      "resume with the model of the checkpoint");
  }
  for (const ParameterTensor& tensor : unit.tensors) {
    if (is_frozen(tensor)) continue;
    const SafetensorsTensor* stored = file->find(tensor.name);
    if (stored == nullptr || stored->shape != shape_of(tensor)) {
      throw ConfigError(fmt::format("{} has no tensor {} of {} x {}", path, tensor.name,
                                    tensor.rows, tensor.columns),
                        "resume with the model of the checkpoint");
    }
  }
  return file;
}

void Checkpoint::open(const std::vector<UnitLayout>& layout, const FrozenSearch& search) {
  std::map<std::string, std::unique_ptr<OpenFile>> verified;
  for (const ListedFile& file : listed_) {
    if (file.name != kConfig) {
      verified[file.name] = open_listed(file, {directory_, disk_, cache_, kRemedy});
    }
  }
  open_frozen(search);
  files_.clear();
  for (const UnitLayout& unit : layout) {
    const auto frozen = [this](const ParameterTensor& tensor) { return is_frozen(tensor); };
    if (std::ranges::all_of(unit.tensors, frozen)) continue;
    for (const StateField field : state_fields(rule_->slots.size())) {
      const std::string name = file_name(field, unit, *rule_);
      const auto found = verified.find(name);
      if (found == verified.end()) {
        throw ConfigError(fmt::format("{} has no {}", directory_, name),
                          "resume with the model of the checkpoint");
      }
      files_[{unit.index, field}] = checked(std::move(found->second), found->first, unit);
    }
  }
}

std::unique_ptr<OpenFile> Checkpoint::open_errors(std::int32_t rank) {
  const auto file = std::ranges::find(listed_, error_file_name(rank), &ListedFile::name);
  TERRACE_CHECK(file != listed_.end());
  return open_listed(*file, {directory_, disk_, cache_, kRemedy});
}

const SafetensorsFile& Checkpoint::file_of(StateField field, const UnitLayout& unit) const {
  return *files_.at({unit.index, field});
}

void Checkpoint::read(StateField field, const UnitLayout& unit, std::int64_t begin,
                      std::span<float> out) const {
  for_each_tensor_part(
      unit, begin, out,
      [&](const ParameterTensor& tensor, std::int64_t first, std::span<float> part) {
        if (is_frozen(tensor)) {
          if (field == StateField::kMaster) {
            return frozen_->read(field, unit, tensor.offset + first, part);
          }
          std::ranges::fill(part, 0.0F);
          return;
        }
        const SafetensorsFile& file = file_of(field, unit);
        file.read(*file.find(tensor.name), static_cast<std::uint64_t>(first) * sizeof(float),
                  std::as_writable_bytes(part));
      });
}

}  // namespace terrace
