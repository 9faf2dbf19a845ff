#include "runtime/session/state_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <utility>

#include "base/error.h"
#include "base/half.h"
#include "base/hash.h"
#include "base/json_depth.h"
#include "runtime/checkpoint/durable_file.h"
#include "runtime/checkpoint/json_number.h"
#include "runtime/checkpoint/listed_file.h"
#include "runtime/checkpoint/safetensors.h"
#include "runtime/session/parameter_values.h"
#include "runtime/session/session_error.h"

namespace terrace {
namespace {

using nlohmann::json;

constexpr const char* kStateSchema = "terrace.optimizer_state/1";
constexpr const char* kStateHash = "xxh3";
constexpr const char* kMasterField = "master";
constexpr const char* kStateFileEnd = ".safetensors";
constexpr const char* kChangedFiles = "terrace_state.changes";
constexpr const char* kCheckpointManifest = "manifest.json";
constexpr const char* kSaveRemedy = "load another saved state, or save this one again";
constexpr std::size_t kPiecesKept = 8;

// Returns the checksum of a manifest that does not have its checksum in it.
std::string hash_of_state(const json& manifest) {
  const std::string text = manifest.dump();
  return to_hex(hash_bytes(std::as_bytes(std::span(text))));
}

std::string state_path(const std::string& directory, const std::string& name) {
  return directory + "/" + name;
}

std::string state_file_name(const std::string& field, std::int64_t generation) {
  return fmt::format("{}-{}{}", field, generation, kStateFileEnd);
}

// Returns the fields of a tensor: the master, then the slots in the rule's order.
std::vector<std::string> fields_of(const SessionGroup& group) {
  std::vector<std::string> fields = {kMasterField};
  for (const Slot& slot : group.rule->slots) fields.emplace_back(slot.name);
  return fields;
}

std::span<const std::byte> part_of(std::span<const std::byte> state, const StatePart& part,
                                   std::int64_t elements) {
  return state.subspan(part.begin, static_cast<std::size_t>(elements) * size_of(part.dtype));
}

// Returns the bytes of a field in a chunk's state; field 0 is the master.
std::span<const std::byte> field_bytes(ParameterMemory& memory, const StateChunk& chunk,
                                       std::span<const std::byte> state, std::size_t field) {
  const StateLayout layout = chunk.layout();
  if (field > 0) return part_of(state, layout.slots.at(field - 1), chunk.elements);
  if (chunk.format.master == MasterForm::kParameter) return memory.read(chunk);
  return part_of(state, layout.master, chunk.elements);
}

// A file that is being written.
struct FieldWriter {
  FieldWriter(std::string file, const std::string& directory, SafetensorsHeader header,
              FileSystem& disk)
      : name(std::move(file)),
        writer(state_path(directory, name), std::move(header), SafetensorsWriter::kDataAlignment,
               disk, &hasher) {}

  std::string name;
  FileHasher hasher;
  SafetensorsWriter writer;
};

using FieldWriters = std::map<std::string, std::unique_ptr<FieldWriter>>;

using FieldHeaders = std::map<std::string, SafetensorsHeader>;

FieldHeaders headers_of(const ParameterTable& table) {
  FieldHeaders headers;
  for (const SessionTensor& tensor : table.tensors()) {
    if (tensor.is_frozen) continue;
    for (const std::string& field : fields_of(table.group_of(tensor))) {
      headers[field].tensors.push_back(
          {.name = tensor.name,
           .type = SafetensorsType::kF32,
           .shape = std::vector<std::uint64_t>(tensor.shape.begin(), tensor.shape.end())});
    }
  }
  return headers;
}

FieldWriters open_writers(const std::string& directory, FieldHeaders headers,
                          std::int64_t generation, FileSystem& disk) {
  FieldWriters writers;
  for (auto& [field, header] : headers) {
    writers[field] = std::make_unique<FieldWriter>(state_file_name(field, generation), directory,
                                                   std::move(header), disk);
  }
  return writers;
}

std::vector<std::size_t> all_chunks(const StateHome& home) {
  std::vector<std::size_t> chunks(home.chunks().size());
  for (std::size_t i = 0; i < chunks.size(); ++i) chunks[i] = i;
  return chunks;
}

json describe_tensors(const ParameterTable& table, const SessionProgress& progress) {
  json tensors = json::array();
  for (std::size_t i = 0; i < table.tensors().size(); ++i) {
    const SessionTensor& tensor = table.tensors()[i];
    if (tensor.is_frozen) continue;
    tensors.push_back({{"name", tensor.name},
                       {"shape", tensor.shape},
                       {"rule", table.group_of(tensor).rule->name},
                       {"updates", progress.updates[i]}});
  }
  return tensors;
}

// Returns the highest generation in the names of a directory's files, 0 where there is none. All
// files count, so that new files replace none of them.
std::int64_t generation_in(const std::string& directory, FileSystem& disk) {
  std::int64_t highest = 0;
  for (const std::string& name : disk.list(directory)) {
    const std::size_t dash = name.rfind('-');
    if (dash == std::string::npos || name.find(kStateFileEnd) == std::string::npos) continue;
    std::int64_t number = 0;
    for (std::size_t i = dash + 1; i < name.size() && i < dash + 16; ++i) {
      if (name[i] < '0' || name[i] > '9') break;
      number = 10 * number + (name[i] - '0');
    }
    highest = std::max(highest, number);
  }
  return highest;
}

// Returns whether it may be the name of a file that a save has written.
bool is_state_file(const std::string& name) {
  return name.ends_with(kStateFileEnd) && name.find('/') == std::string::npos;
}

// Returns the files that a directory's manifest names; none where there is no manifest. Throws
// where it cannot be read.
std::vector<std::string> files_meant(const std::string& directory, FileSystem& disk) {
  const std::string path = state_path(directory, kStateManifest);
  std::vector<std::string> names;
  if (!disk.exists(path)) return names;
  const std::string text = read_whole_file(disk, path);
  if (nests_deeper(text)) throw std::invalid_argument("nested too deeply");
  json manifest = json::parse(text);
  const auto hash = manifest.at(kStateHash).get<std::string>();
  manifest.erase(kStateHash);
  if (hash != hash_of_state(manifest)) throw std::invalid_argument("its checksum differs");
  for (const json& file : manifest.at("files")) {
    names.push_back(parse_listed_file(file.at("file").dump()).name);
  }
  return names;
}

// Returns the same files, but none for a damaged manifest: its files are not known, and stay.
std::vector<std::string> files_replaced(const std::string& directory, FileSystem& disk) {
  try {
    return files_meant(directory, disk);
  } catch (const std::exception&) {
    return {};
  }
}

std::vector<std::string> changed_files(const std::string& path, FileSystem& disk) {
  std::vector<std::string> names;
  if (!disk.exists(path)) return names;
  const std::string text = read_whole_file(disk, path);
  const json listed = nests_deeper(text) ? json() : json::parse(text, nullptr, false);
  if (!listed.is_array()) return names;
  for (const json& name : listed) {
    if (name.is_string() && is_state_file(name.get<std::string>())) {
      names.push_back(name.get<std::string>());
    }
  }
  return names;
}

// Lists the files that a save writes and the files that it replaces, before it writes or removes
// any of them. So the files that a killed save has left can be told from others.
void list_changed_files(const std::string& directory, std::vector<std::string> written,
                        FileSystem& disk) {
  const std::string path = state_path(directory, kChangedFiles);
  const std::vector<std::string> left = changed_files(path, disk);
  written.insert(written.end(), left.begin(), left.end());
  const std::vector<std::string> replaced = files_replaced(directory, disk);
  written.insert(written.end(), replaced.begin(), replaced.end());
  write_durable_file(path, json(written).dump() + "\n", disk);
}

// Removes the files that a save has written or replaced and that the manifest does not name. No
// other file is touched. If it is not known which files these are, or if one cannot be removed,
// they stay until the next save.
void remove_replaced_files(const std::string& directory, FileSystem& disk) {
  const std::string path = state_path(directory, kChangedFiles);
  try {
    if (!disk.exists(path)) return;
    sync_directory(directory, disk);  // a power cut cannot bring an older manifest back
    const std::vector<std::string> meant = files_meant(directory, disk);
    for (const std::string& name : changed_files(path, disk)) {
      if (std::ranges::find(meant, name) != meant.end()) continue;
      disk.remove(state_path(directory, name));
      disk.remove(state_path(directory, name + ".tmp"));
    }
  } catch (const std::exception&) {
    return;
  }
  disk.remove(path);
}

}  // namespace

void make_state_directory(const std::string& directory, FileSystem& disk) {
  if (!disk.exists(directory)) {
    const int error = disk.make_directory(directory);
    if (error != 0 && error != EEXIST) {  // another process may have made it
      throw IoError({.operation = "make directory", .path = directory, .error_number = error},
                    "its parent must exist and be writable");
    }
  }
  if (disk.exists(state_path(directory, kCheckpointManifest))) {
    throw SessionError(
        SessionProblem::kArgument,
        fmt::format("{} has a {}: it is a checkpoint", directory, kCheckpointManifest),
        "save into a separate directory");
  }
}

namespace {

// Completes and syncs the files, and returns the part of the manifest about them.
json write_fields(const SavedParts& parts, const FieldWriters& writers) {
  const auto write = [&](std::size_t i, std::span<std::byte> state) {
    const StateChunk& chunk = parts.home.chunks()[i];
    const auto fields = fields_of(parts.table.group_of(parts.table.tensor(chunk.tensor)));
    for (std::size_t field = 0; field < fields.size(); ++field) {
      writers.at(fields[field])->writer.append(field_bytes(parts.memory, chunk, state, field));
    }
  };
  parts.home.for_each(all_chunks(parts.home), StateAccess::kRead, write);
  json files = json::array();
  for (const auto& [field, writer] : writers) {
    writer->writer.finish();
    json listed = json::parse(to_json(ListedFile{writer->name, writer->hasher.finish()}));
    files.push_back({{"field", field}, {"file", std::move(listed)}});
  }
  return files;
}

}  // namespace

void save_session_state(const std::string& directory, const SavedParts& parts,
                        const SessionProgress& progress, FileSystem& disk) {
  remove_replaced_files(directory, disk);  // of a save that was killed
  json manifest = {{"schema", kStateSchema},
                   {"step", progress.step},
                   {"tensors", describe_tensors(parts.table, progress)}};
  try {
    const std::int64_t generation = generation_in(directory, disk) + 1;
    FieldHeaders headers = headers_of(parts.table);
    std::vector<std::string> names;
    for (const auto& [field, header] : headers) names.push_back(state_file_name(field, generation));
    list_changed_files(directory, std::move(names), disk);
    const FieldWriters writers = open_writers(directory, std::move(headers), generation, disk);
    manifest["files"] = write_fields(parts, writers);
  } catch (...) {
    remove_replaced_files(directory, disk);
    throw;
  }
  manifest[kStateHash] = hash_of_state(manifest);
  write_durable_file(state_path(directory, kStateManifest), manifest.dump(1) + "\n", disk);
  remove_replaced_files(directory, disk);
}

SavedSessionState::SavedSessionState(std::string directory, const ParameterTable& table,
                                     FileSystem& disk)
    : directory_(std::move(directory)), table_(table), disk_(disk) {
  const std::string path = state_path(directory_, kStateManifest);
  try {
    read_manifest();
  } catch (const Error&) {
    throw;
  } catch (const std::exception& problem) {
    throw CorruptData(fmt::format("{}: {}", path, problem.what()), kSaveRemedy);
  }
}

void SavedSessionState::read_manifest() {
  const std::string path = state_path(directory_, kStateManifest);
  const std::string text = read_whole_file(disk_, path);
  if (nests_deeper(text)) throw CorruptData(path + ": nested too deeply", kSaveRemedy);
  json manifest = json::parse(text);
  const auto hash = manifest.at(kStateHash).get<std::string>();
  manifest.erase(kStateHash);
  if (hash != hash_of_state(manifest)) {
    throw CorruptData(fmt::format("{}: its checksum differs", path), kSaveRemedy);
  }
  if (manifest.at("schema") != kStateSchema) {
    throw CorruptData(fmt::format("{}: is not of the schema {}", path, kStateSchema), kSaveRemedy);
  }
  progress_.step = whole_number<std::int64_t>(manifest.at("step"));
  progress_.updates.assign(table_.tensors().size(), 0);
  for (const json& file : manifest.at("files")) {
    files_.push_back({file.at("field").get<std::string>(), file.at("file").dump()});
    parse_listed_file(files_.back().listed);
  }
  std::map<std::string, const json*> saved;
  for (const json& tensor : manifest.at("tensors")) {
    saved[tensor.at("name").get<std::string>()] = &tensor;
  }
  const auto mismatch = [&](const std::string& what) {
    throw SessionError(SessionProblem::kMismatch, fmt::format("{}: {}", directory_, what),
                       "add the same groups and tensors as when the state was saved");
  };
  std::size_t trained = 0;
  for (std::size_t i = 0; i < table_.tensors().size(); ++i) {
    const SessionTensor& tensor = table_.tensors()[i];
    if (tensor.is_frozen) continue;
    ++trained;
    const auto found = saved.find(tensor.name);
    if (found == saved.end()) mismatch(fmt::format("has no tensor {}", tensor.name));
    const json& there = *found->second;
    if (there.at("shape").get<std::vector<std::int64_t>>() != tensor.shape) {
      mismatch(fmt::format("tensor {} has the shape {}, but [{}] in the session", tensor.name,
                           there.at("shape").dump(), fmt::join(tensor.shape, ",")));
    }
    const auto rule = there.at("rule").get<std::string>();
    if (rule != table_.group_of(tensor).rule->name) {
      mismatch(fmt::format("tensor {} was updated by {}, but the session updates it by {}",
                           tensor.name, rule, table_.group_of(tensor).rule->name));
    }
    progress_.updates[i] = whole_number<std::int64_t>(there.at("updates"));
  }
  if (trained != saved.size()) {
    mismatch(fmt::format("has {} tensors, but the session trains {}", saved.size(), trained));
  }
  const bool is_counted = progress_.step >= 0 && progress_.step <= kMostSteps &&
                          std::ranges::all_of(progress_.updates, [&](std::int64_t updates) {
                            return updates >= 0 && updates <= progress_.step;
                          });
  if (!is_counted) throw CorruptData(path + ": its step counts are impossible", kSaveRemedy);
}

namespace {

// Reads a chunk's part of a saved tensor.
class FieldReader {
 public:
  explicit FieldReader(const SafetensorsFile& file) : file_(file) {}

  void read(const SessionTensor& tensor, const StateChunk& chunk, std::byte* out) const {
    const SafetensorsTensor* saved = file_.find(tensor.name);
    if (saved == nullptr || saved->type != SafetensorsType::kF32 ||
        saved->elements() != static_cast<std::uint64_t>(tensor.elements)) {
      throw CorruptData(fmt::format("{}: has no fp32 tensor {} of {} elements", file_.path(),
                                    tensor.name, tensor.elements),
                        kSaveRemedy);
    }
    file_.read(*saved, static_cast<std::uint64_t>(chunk.begin) * sizeof(float),
               {out, static_cast<std::size_t>(chunk.elements) * sizeof(float)});
  }

 private:
  const SafetensorsFile& file_;
};

}  // namespace

void SavedSessionState::load(StateHome& home, ParameterMemory& memory) {
  PieceCache cache(kPiecesKept);
  std::map<std::string, std::unique_ptr<SafetensorsFile>> files;
  for (const File& file : files_) {
    const ListedFile listed = parse_listed_file(file.listed);
    files[file.field] = std::make_unique<SafetensorsFile>(
        state_path(directory_, listed.name),
        open_listed(listed, {directory_, disk_, cache, kSaveRemedy}));
  }
  const auto reader_of = [&](const std::string& field) {
    const auto found = files.find(field);
    if (found == files.end()) {
      throw CorruptData(fmt::format("{}: has no file of {}", directory_, field), kSaveRemedy);
    }
    return FieldReader(*found->second);
  };
  home.for_each(
      all_chunks(home), StateAccess::kWrite, [&](std::size_t i, std::span<std::byte> state) {
        const StateChunk& chunk = home.chunks()[i];
        const SessionTensor& tensor = table_.tensor(chunk.tensor);
        const StateLayout layout = chunk.layout();
        std::memset(state.data(), 0, state.size());
        const auto fields = fields_of(table_.group_of(tensor));
        for (std::size_t field = 1; field < fields.size(); ++field) {
          reader_of(fields[field])
              .read(tensor, chunk, state.data() + layout.slots.at(field - 1).begin);
        }
        const FieldReader master = reader_of(kMasterField);
        if (chunk.format.master == MasterForm::kParameter) {
          master.read(tensor, chunk, memory.room(chunk).data());
          memory.write_back(chunk);
          return;
        }
        std::byte* const out = state.data() + layout.master.begin;
        master.read(tensor, chunk, out);
        round_parameter(tensor.dtype, memory.room(chunk), reinterpret_cast<const float*>(out));
        memory.write_back(chunk);
      });
  memory.wait();
}

}  // namespace terrace
