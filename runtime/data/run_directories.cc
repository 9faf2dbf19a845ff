#include "runtime/data/run_directories.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <iterator>
#include <system_error>

#include "runtime/data/data_files.h"

namespace terrace {
namespace {

namespace fs = std::filesystem;

constexpr auto kFiles = std::to_array<const char*>({"config.toml", "run.json", "lock"});

bool has_file(const fs::path& directory, const char* name) {
  std::error_code ignored;
  return fs::is_regular_file(directory / name, ignored);
}

bool has_one_entry(const fs::path& directory) {
  std::error_code error;
  const fs::directory_iterator entry(directory, error);
  return !error && std::distance(fs::begin(entry), fs::end(entry)) == 1;
}

}  // namespace

bool is_run_directory(const std::string& path) {
  if (!has_file(path, "lock")) return false;
  const bool has_all =
      std::ranges::all_of(kFiles, [&](const char* name) { return has_file(path, name); });
  std::error_code ignored;
  return has_all || (fs::file_size(fs::path(path) / "lock", ignored) == 0 && has_one_entry(path));
}

std::vector<std::string> run_directories_below(const std::vector<std::string>& paths) {
  std::vector<std::string> found;
  for (const std::string& path : paths) {
    std::error_code error;
    fs::recursive_directory_iterator entry(path, fs::directory_options::follow_directory_symlink,
                                           error);
    const fs::recursive_directory_iterator end;
    for (; !error && entry != end; entry.increment(error)) {
      std::error_code unreadable;
      if (!entry->is_directory(unreadable)) continue;
      const std::string directory = entry->path().string();
      const bool is_hidden = entry->path().filename().string().starts_with('.');
      const bool is_run = !is_hidden && is_run_directory(directory);
      if (is_run) found.push_back(directory);
      if (is_run || is_hidden) entry.disable_recursion_pending();
    }
  }
  std::ranges::sort(found);
  return found;
}

std::string describe_left_out(const std::string& flag, const std::vector<std::string>& runs) {
  if (runs.empty()) return "";
  return fmt::format("left out of {} because {} of terrace train: {}", flag,
                     runs.size() == 1 ? "it is a run directory" : "they are run directories",
                     some_names(runs));
}

}  // namespace terrace
