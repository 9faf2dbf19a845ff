#include "runtime/report/report_run.h"

#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "base/error.h"

namespace terrace::report {
namespace {

namespace fs = std::filesystem;

bool is_run_directory(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path / "metrics.jsonl", ignored) || fs::exists(path / "run.json", ignored);
}

[[noreturn]] void refuse(const fs::path& path) {
  const std::string name = path.string();
  std::error_code failed;
  constexpr const char* kRemedy =
      "give the directory that terrace train --run-dir named, for example runs/first";
  const bool is_there = fs::exists(path, failed);
  if (failed) {
    throw ConfigError(fmt::format("{} cannot be looked at: {}", name, failed.message()), kRemedy);
  }
  if (!is_there) throw ConfigError(fmt::format("{} does not exist", name), kRemedy);
  const fs::path parent = fs::absolute(path).lexically_normal().parent_path();
  if (!fs::is_directory(path, failed)) {
    throw ConfigError(fmt::format("{} is not a run directory: it is a file", name),
                      is_run_directory(parent)
                          ? fmt::format("give its directory: {}", parent.string())
                          : kRemedy);
  }
  throw ConfigError(
      fmt::format("{} is not a run directory: it has neither metrics.jsonl nor run.json", name),
      is_run_directory(parent) ? fmt::format("did you mean {}?", parent.string()) : kRemedy);
}

// Returns none where the file cannot be read.
std::string content_of(const fs::path& path) {
  std::ifstream stream(path, std::ios::binary);
  std::ostringstream text;
  if (stream) text << stream.rdbuf();
  return text.str();
}

std::string name_of_directory(const std::string& directory) {
  std::error_code failed;
  const fs::path path = fs::weakly_canonical(directory, failed);
  const std::string name = failed ? directory : path.filename().string();
  return name.empty() ? directory : name;
}

ReportRun read_run(const std::string& directory) {
  const fs::path path = directory;
  if (!is_run_directory(path)) refuse(path);
  ReportRun run;
  run.directory = directory;
  run.name = name_of_directory(directory);
  run.facts = read_run_facts((path / "run.json").string(), run.remarks);
  run.metrics = read_metrics((path / "metrics.jsonl").string(), run.remarks);
  std::error_code ignored;
  if (fs::exists(path / "config.toml", ignored)) {
    run.config_text = content_of(path / "config.toml");
    run.config = read_config_values(run.config_text, run.remarks);
    if (run.config_text.empty()) {
      run.remarks.emplace_back("config.toml is empty or cannot be read.");
    }
  } else {
    run.remarks.emplace_back("config.toml is missing, so the options are not known.");
  }
  if (fs::exists(path / "trace.json", ignored)) {
    run.trace = read_lane_trace((path / "trace.json").string(), run.remarks);
  }
  return run;
}

}  // namespace

std::vector<ReportRun> read_runs(const std::vector<std::string>& directories) {
  std::vector<ReportRun> runs;
  std::set<std::string> names;
  for (const std::string& directory : directories) {
    runs.push_back(read_run(directory));
    ReportRun& run = runs.back();
    const std::string plain = run.name;
    for (int number = 2; !names.insert(run.name).second; ++number) {
      run.name = fmt::format("{} ({})", plain, number);
    }
  }
  return runs;
}

}  // namespace terrace::report
