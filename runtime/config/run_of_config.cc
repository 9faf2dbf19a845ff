#include "runtime/config/run_of_config.h"

#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <system_error>

#include "base/error.h"

namespace terrace {
namespace {

namespace fs = std::filesystem;

bool has_checkpoint(const fs::path& directory) {
  std::error_code error;
  fs::directory_iterator entry(directory, error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    const bool is_named_so = entry->path().filename().string().starts_with("checkpoint-");
    std::error_code ignored;
    if (is_named_so && fs::exists(entry->path() / "manifest.json", ignored)) return true;
  }
  return false;
}

fs::path directory_of(const std::string& path) {
  return fs::absolute(path).lexically_normal().parent_path();
}

}  // namespace

std::optional<std::string> run_of_config(const std::string& path) {
  if (fs::path(path).filename() != "config.toml") return std::nullopt;
  const fs::path directory = directory_of(path);
  std::error_code ignored;
  const bool is_run =
      fs::is_regular_file(directory / "run.json", ignored) || has_checkpoint(directory);
  return is_run ? std::optional(directory.string()) : std::nullopt;
}

std::int64_t automatic_save_steps(const std::string& run_dir) {
  std::ifstream stream(fs::path(run_dir) / "run.json");
  const nlohmann::json run = nlohmann::json::parse(stream, nullptr, false);
  if (!run.is_object() || !run.contains(kAutomaticStepsKey)) return 0;
  const nlohmann::json& steps = run[kAutomaticStepsKey];
  return steps.is_number_unsigned() ? steps.get<std::int64_t>() : 0;
}

void refuse_passing_over(const std::string& path, const std::string& run_dir) {
  const fs::path directory = directory_of(path);
  if (!has_checkpoint(directory) || has_checkpoint(run_dir)) return;
  throw ConfigError(
      fmt::format("--resume auto: {} names the run directory {}, which has no checkpoint, but the "
                  "directory of this file has checkpoints",
                  path, run_dir),
      fmt::format("give --run-dir {} to continue there, or another --run-dir to start a new run",
                  directory.string()));
}

}  // namespace terrace
