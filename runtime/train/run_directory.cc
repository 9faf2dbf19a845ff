#include "runtime/train/run_directory.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <cerrno>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "memory/host/host_limits.h"
#include "memory/host/topology.h"
#include "runtime/checkpoint/durable_file.h"
#include "runtime/config/toml_text.h"
#include "runtime/config/train_config.h"
#include "runtime/config/version.h"
#include "runtime/model/model_presets.h"

namespace terrace {
namespace {

namespace fs = std::filesystem;

std::string time_text(const char* format) {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  std::array<char, 32> text{};
  std::strftime(text.data(), text.size(), format, &parts);
  return text.data();
}

nlohmann::ordered_json host_facts() {
  utsname system{};
  uname(&system);
  const Topology topology = read_topology();
  const HostLimits limits = read_host_limits();
  return {{"cpu", topology.cpu_model},
          {"cpus", limits.usable_cpus()},
          {"memory_bytes", limits.total_bytes},
          {"kernel", std::string(system.release)}};
}

// Arguments may be of any bytes, which JSON's text cannot: others stand as U+FFFD.
std::string dump(const nlohmann::ordered_json& document) {
  return document.dump(2, ' ', false, nlohmann::json::error_handler_t::replace);
}

// The preset, or the last part of the directory's path, wherever that leads.
std::string name_of_model(const TrainOptions& options) {
  if (!preset_json(options.model.model).empty()) return options.model.model;
  std::error_code error;
  fs::path path = fs::weakly_canonical(options.model.model, error);
  if (!path.has_filename()) path = path.parent_path();
  const std::string name = path.filename().string();
  return !name.empty() && is_utf8(name) ? name : "model";  // it will stand in config.toml
}

constexpr const char* kLockFile = "lock";

// The directories of a path that do not exist, the innermost first.
std::vector<std::string> missing_directories(fs::path path) {
  std::vector<std::string> missing;
  std::error_code ignored;
  if (!path.has_filename()) path = path.parent_path();
  for (; !path.empty() && !fs::exists(path, ignored); path = path.parent_path()) {
    missing.push_back(path.string());
  }
  return missing;
}

constexpr const char* kResultKey = "steps_of_final";

std::string run_file(const std::string& run_dir) {
  return (fs::path(run_dir) / "run.json").string();
}

nlohmann::ordered_json read_run_file(const std::string& run_dir) {
  std::ifstream stream(run_file(run_dir));
  return nlohmann::ordered_json::parse(stream, nullptr, false);
}

}  // namespace

RunDirectory::RunDirectory(const TrainOptions& options) {
  fs::path path = options.run.run_dir;
  if (path.empty()) {
    path = fs::path("runs") / (name_of_model(options) + time_text("-%Y%m%d-%H%M%S"));
  }
  path_ = path.string();
  made_ = missing_directories(path);
  std::error_code error;
  fs::create_directories(path, error);
  if (error) {
    remove_made();
    throw ConfigError("the run directory " + path_ + " cannot be made: " + error.message(),
                      "give --run-dir a directory that can be written");
  }
  try {
    lock();
  } catch (...) {
    remove_made();
    throw;
  }
}

void RunDirectory::lock() {
  const std::string path = (fs::path(path_) / kLockFile).string();
  file_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (file_ < 0) {
    throw IoError({.operation = "open", .path = path, .error_number = errno},
                  "give --run-dir a directory that can be written");
  }
  if (::flock(file_, LOCK_EX | LOCK_NB) == 0) return;
  const int error_number = errno;
  ::close(file_);
  if (error_number != EWOULDBLOCK) {
    throw IoError({.operation = "flock", .path = path, .error_number = error_number},
                  "give --run-dir a directory on a file system that has locks");
  }
  made_.clear();  // it is the other run's
  throw ConfigError("another run is writing to the run directory " + path_,
                    "wait for it to end, or give another --run-dir");
}

void RunDirectory::remove_made() noexcept {
  std::error_code ignored;
  if (!made_.empty()) fs::remove(fs::path(path_) / kLockFile, ignored);
  for (const std::string& directory : made_) {  // only as far as they are empty
    if (!fs::remove(directory, ignored)) return;
  }
}

RunDirectory::~RunDirectory() {
  remove_made();
  ::close(file_);
}

void write_run_files(const std::string& run_dir, const TrainCommand& command,
                     const std::string& program_summary) {
  TrainOptions options = command.options;
  options.run.run_dir = run_dir;  // also where it was chosen here: a copy of the file goes on there
  options.run.overwrite_later = false;  // was allowed once
  write_durable_file((fs::path(run_dir) / "config.toml").string(),
                     to_toml(with_absolute_paths(options)));
  nlohmann::ordered_json run;
  run["schema"] = "terrace.run/1";
  run["version"] = terrace_version();
  run["started"] = time_text("%Y-%m-%dT%H:%M:%SZ");
  run["host"] = host_facts();
  run["command_line"] = command.command_line;
  run["program"] = program_summary;
  write_durable_file(run_file(run_dir), dump(run) + "\n");
}

void write_steps_of_result(const std::string& run_dir, std::int64_t steps) {
  nlohmann::ordered_json run = read_run_file(run_dir);
  if (!run.is_object()) return;  // somebody's; what is in it stays
  run[kResultKey] = steps;
  write_durable_file(run_file(run_dir), dump(run) + "\n");
}

std::optional<std::int64_t> steps_of_result(const std::string& run_dir) {
  const nlohmann::ordered_json run = read_run_file(run_dir);
  if (!run.is_object() || !run.contains(kResultKey)) return std::nullopt;
  const nlohmann::ordered_json& steps = run[kResultKey];
  if (!steps.is_number_integer()) return std::nullopt;
  return steps.get<std::int64_t>();
}

}  // namespace terrace
