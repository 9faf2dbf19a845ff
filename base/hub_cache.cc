#include "base/hub_cache.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <system_error>
#include <vector>

#include "base/error.h"

namespace terrace {
namespace {

namespace fs = std::filesystem;

constexpr const char* kSnapshots = "snapshots";
constexpr std::string_view kModelPrefix = "models--";

bool is_folder(const fs::path& path) {
  std::error_code ignored;
  return fs::is_directory(path, ignored);
}

fs::path without_last_slash(const std::string& path) {
  const fs::path normal = fs::path(path).lexically_normal();
  return normal.has_filename() ? normal : normal.parent_path();
}

// Returns the directory models--A--B that a path means, perhaps under another name.
std::optional<fs::path> cached_model(const std::string& path) {
  fs::path directory = without_last_slash(path);
  if (directory.filename() == kSnapshots) directory = directory.parent_path();
  if (!is_folder(directory / kSnapshots)) return std::nullopt;
  const bool has_name = directory.filename().string().starts_with(kModelPrefix);
  if (!has_name && !is_folder(directory / "refs")) return std::nullopt;
  return directory;
}

std::vector<std::string> names_of_snapshots(const fs::path& model) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator entry(model / kSnapshots, error);
       !error && entry != fs::directory_iterator(); entry.increment(error)) {
    if (is_folder(entry->path())) names.push_back(entry->path().filename().string());
  }
  std::ranges::sort(names);
  return names;
}

// Returns the commit that refs/main names; empty where it names none.
std::string main_commit(const fs::path& model) {
  std::ifstream file(model / "refs" / "main");
  std::string commit;
  file >> commit;
  return commit;
}

fs::path hub_cache_directory() {
  const auto variable = [](const char* name) -> std::optional<fs::path> {
    const char* const value = std::getenv(name);
    if (value == nullptr || *value == '\0') return std::nullopt;
    return value;
  };
  if (const auto cache = variable("HF_HUB_CACHE")) return *cache;
  if (const auto home = variable("HF_HOME")) return *home / "hub";
  if (const auto caches = variable("XDG_CACHE_HOME")) return *caches / "huggingface" / "hub";
  return variable("HOME").value_or("") / ".cache" / "huggingface" / "hub";
}

}  // namespace

std::string hub_snapshot(const std::string& path) {
  const std::optional<fs::path> model = cached_model(path);
  if (!model) return path;
  const std::vector<std::string> names = names_of_snapshots(*model);
  const std::string commit = main_commit(*model);
  if (std::ranges::find(names, commit) != names.end()) {
    return (*model / kSnapshots / commit).string();
  }
  if (names.empty()) {
    throw ConfigError(fmt::format("{} is of the hub's cache, but has no snapshot", path),
                      "download the model again");
  }
  if (commit.empty() && names.size() == 1) return (*model / kSnapshots / names.front()).string();
  const std::string main = commit.empty() ? "there is no refs/main" : "refs/main names " + commit;
  throw ConfigError(fmt::format("{} is of the hub's cache: {}, and the snapshots are {}", path,
                                main, fmt::join(names, ", ")),
                    fmt::format("name the snapshot to read, for example {}",
                                (*model / kSnapshots / names.front()).string()));
}

std::string model_name_of(const std::string& directory) {
  const fs::path path = without_last_slash(directory);
  const fs::path snapshots = path.parent_path();
  const std::string cached = snapshots.parent_path().filename().string();
  if (snapshots.filename() == kSnapshots && cached.starts_with(kModelPrefix)) {
    return cached.substr(cached.rfind("--") + 2);
  }
  return path.filename().string();
}

std::string find_in_hub_cache(const std::string& model) {
  std::string name(kModelPrefix);
  for (const char c : model) {
    if (c == '/') {
      name += "--";
    } else {
      name += c;
    }
  }
  const fs::path directory = hub_cache_directory() / name;
  return is_folder(directory / kSnapshots) ? directory.string() : "";
}

}  // namespace terrace
