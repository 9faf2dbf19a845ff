#include "runtime/checkpoint/hf_weight_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <span>
#include <string_view>
#include <system_error>
#include <vector>

namespace terrace {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kNamesShown = 8;

// A kind of weight file, known by its name, and the advice for it. Names are compared in lower
// case.
struct WeightKind {
  std::string_view part;  // of the name; at its end where it begins with a dot
  const char* remedy;
};

constexpr const char* kConvert =
    "convert them once: transformers' from_pretrained(...).save_pretrained(..., "
    "safe_serialization=True)";
constexpr const char* kFetchInterrupted = "fetch the model again: its download was interrupted";
constexpr const char* kOtherName =
    "if it is the whole model, name it model.safetensors; if it is a part, download "
    "model.safetensors.index.json, which says which file has which tensor";

// All kinds. If a name fits several, the first one counts.
constexpr auto kKinds = std::to_array<WeightKind>({
    {".incomplete", kFetchInterrupted},
    {".part", kFetchInterrupted},
    {".crdownload", kFetchInterrupted},
    {".aria2", kFetchInterrupted},
    {".download", kFetchInterrupted},
    {".tmp", kFetchInterrupted},
    {"adapter_model",
     "name the model that the adapter was made for, and the adapter's directory as --adapter"},
    {"consolidated",
     "download the files in transformers' format: consolidated files use other tensor names"},
    {".safetensors", kOtherName},
    {".safetensors.index.json", "fetch the files that the index names"},
    {".gguf", "fetch the safetensors that it was made from"},
    {".ggml", "fetch the safetensors that it was made from"},
    {".h5", "convert it once: from_pretrained(..., from_tf=True).save_pretrained(...)"},
    {".msgpack", "convert it once: from_pretrained(..., from_flax=True).save_pretrained(...)"},
    {".bin", kConvert},
    {".bin.index.json", kConvert},
    {".pt", kConvert},
    {".pth", kConvert},
    {".ckpt", kConvert},
    {".onnx", kConvert},
    {"model.ckpt", "convert it once: from_pretrained(..., from_tf=True).save_pretrained(...)"},
    {"safetensors", kOtherName},
});

// Files that trainers leave beside weights.
constexpr auto kOthers = std::to_array<std::string_view>(
    {"training_args", "optimizer", "scheduler", "rng_state", "scaler", "trainer_state"});

std::string lower(std::string text) {
  std::ranges::transform(text, text.begin(), [](unsigned char c) {
    return static_cast<char>(c >= 'A' && c <= 'Z' ? c + ('a' - 'A') : c);
  });
  return text;
}

// Returns the kind of a file; null where its name is not like a name of weights.
const WeightKind* kind_of(const std::string& file_name) {
  const std::string name = lower(file_name);
  for (const std::string_view other : kOthers) {
    if (name.starts_with(other)) return nullptr;
  }
  for (const WeightKind& kind : kKinds) {
    const bool is_ending = kind.part.starts_with('.');
    if (is_ending ? name.ends_with(kind.part) : name.find(kind.part) != std::string::npos) {
      return &kind;
    }
  }
  return nullptr;
}

struct FoundFile {
  std::string name;  // begins with its folder, if it is in one
  std::string remedy;
};

FoundFile describe(const fs::directory_entry& entry, const std::string& folder,
                   const WeightKind& kind) {
  std::error_code ignored;
  const std::string name = folder + entry.path().filename().string();
  const fs::file_status target = entry.status(ignored);
  if (entry.is_symlink(ignored) && !fs::exists(target)) {
    return {fmt::format("{} (a link to {}, which does not exist)", name,
                        fs::read_symlink(entry.path(), ignored).string()),
            "download the model again, or copy it together with the files that its links lead to"};
  }
  if (fs::is_directory(target)) return {name + " (a directory)", kConvert};
  if (!folder.empty()) {
    return {name, fmt::format("if {} is a separate model, name that directory", folder)};
  }
  return {name, kind.remedy};
}

bool is_hidden(const fs::path& path) { return path.filename().string().starts_with('.'); }

// Adds the files in the directory itself, or in a folder of it.
void add_files(const fs::path& directory, const std::string& folder,
               std::vector<FoundFile>& found) {
  std::error_code error;
  std::vector<fs::directory_entry> entries;
  for (fs::directory_iterator entry(directory / folder, error);
       !error && entry != fs::directory_iterator(); entry.increment(error)) {
    if (!is_hidden(entry->path())) entries.push_back(*entry);
  }
  std::ranges::sort(entries);
  for (const fs::directory_entry& entry : entries) {
    const std::string name = entry.path().filename().string();
    if (const WeightKind* const kind = kind_of(name); kind != nullptr) {
      found.push_back(describe(entry, folder, *kind));
    } else if (folder.empty() && entry.is_directory(error)) {
      add_files(directory, name + "/", found);
    }
  }
}

std::vector<FoundFile> files_like_weights(const std::string& directory) {
  std::vector<FoundFile> found;
  add_files(directory, "", found);
  // Files of the directory itself say more about it than files of its folders.
  std::ranges::stable_partition(
      found, [](const FoundFile& file) { return file.name.find('/') == std::string::npos; });
  return found;
}

}  // namespace

bool has_hf_weights(const std::string& directory) {
  std::error_code ignored;
  return fs::is_regular_file(fs::path(directory) / kHfSingleFile, ignored) ||
         fs::is_regular_file(fs::path(directory) / kHfIndexFile, ignored);
}

bool has_files_like_weights(const std::string& directory) {
  return !files_like_weights(directory).empty();
}

ConfigError no_hf_weights(const std::string& directory, const std::string& or_else) {
  const std::vector<FoundFile> found = files_like_weights(directory);
  if (found.empty()) {
    return {fmt::format("{} has no weights: neither {} nor {}, nor a file that looks like weights",
                        directory, kHfSingleFile, kHfIndexFile),
            or_else};
  }
  std::vector<std::string> names;
  for (const FoundFile& file : found) names.push_back(file.name);
  const bool is_cut = names.size() > kNamesShown;
  names.resize(std::min(names.size(), kNamesShown));
  return {fmt::format("{} has no weights that can be loaded: neither {} nor {} can be read, "
                      "but there is {}{}",
                      directory, kHfSingleFile, kHfIndexFile, fmt::join(names, ", "),
                      is_cut ? ", ..." : ""),
          fmt::format("{}; or {}", found.front().remedy, or_else)};
}

}  // namespace terrace
