#include "runtime/train/run_directory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/file_lock.h"
#include "base/hub_cache.h"
#include "base/not_made.h"
#include "runtime/checkpoint/durable_file.h"
#include "runtime/config/host_facts.h"
#include "runtime/config/run_of_config.h"
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

// Arguments may have any bytes, and JSON text may not: bytes that are not UTF-8 become U+FFFD.
std::string dump(const nlohmann::ordered_json& document) {
  return document.dump(2, ' ', false, nlohmann::json::error_handler_t::replace);
}

// Returns the preset, or the last part of the directory's path after links and ".." are resolved.
std::string name_of_model(const TrainOptions& options) {
  if (!preset_json(options.model.model).empty()) return options.model.model;
  std::error_code error;
  const std::string name = model_name_of(fs::weakly_canonical(options.model.model, error).string());
  return !name.empty() && is_utf8(name) ? name : "model";  // the name will be in config.toml
}

constexpr const char* kLockFile = "lock";
constexpr const char* kOtherDirectory = "give a --run-dir that can be written to";

// Throws for a lock file that cannot be opened. The directory exists, so a wrong path is not the
// reason.
[[noreturn]] void refuse_lock_file(const std::string& path, int error_number) {
  if (error_number == ENOSPC || error_number == EDQUOT) {
    throw_not_made({"the file", path, ""}, error_number);
  }
  throw IoError({.operation = "open", .path = path, .error_number = error_number}, kOtherDirectory);
}

// Returns whether the path leads to the open file.
bool is_file(int descriptor, const std::string& path) {
  struct stat open = {};
  struct stat there = {};
  return ::fstat(descriptor, &open) == 0 && ::stat(path.c_str(), &there) == 0 &&
         open.st_dev == there.st_dev && open.st_ino == there.st_ino;
}

// Returns the directories of a path that do not exist, the innermost first.
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

std::string config_file(const std::string& run_dir) {
  return (fs::path(run_dir) / "config.toml").string();
}

std::string config_of(const std::string& run_dir, TrainOptions options) {
  options.run.run_dir = run_dir;  // even if chosen here: a copy of the file then goes on there
  options.run.overwrite_later = false;  // allowed for this start only
  SaveInterval& every = options.run.checkpoint_every;
  if (every.steps > 0) every.is_automatic = false;  // run.json has the number
  return to_toml(with_absolute_paths(options));
}

std::string run_file(const std::string& run_dir) {
  return (fs::path(run_dir) / "run.json").string();
}

nlohmann::ordered_json read_run_file(const std::string& run_dir) {
  std::ifstream stream(run_file(run_dir));
  return nlohmann::ordered_json::parse(stream, nullptr, false);
}

void add_to_run_file(const std::string& run_dir, const std::string& key,
                     const nlohmann::ordered_json& value) {
  nlohmann::ordered_json run = read_run_file(run_dir);
  if (!run.is_object()) return;  // somebody else's file: its content stays
  run[key] = value;
  write_durable_file(run_file(run_dir), dump(run) + "\n");
}

nlohmann::ordered_json mesh_json(const MeshShape& mesh) {
  return {{"ranks", mesh.ranks()},
          {"data", mesh.data},
          {"islands", mesh.islands},
          {"tensor", mesh.tensor},
          {"pipeline", mesh.pipeline}};
}

}  // namespace

RunDirectory::RunDirectory(const TrainOptions& options, Log& log, std::chrono::milliseconds wait) {
  try {
    if (options.run.run_dir.empty()) {
      make_new(
          (fs::path("runs") / (name_of_model(options) + time_text("-%Y%m%d-%H%M%S"))).string());
    } else {
      make_named(options.run.run_dir);
    }
    lock(log, wait);
  } catch (...) {
    remove_made();
    throw;
  }
}

void RunDirectory::make_named(const std::string& path) {
  path_ = path;
  made_ = missing_directories(path);
  std::error_code error;
  fs::create_directories(path, error);
  if (error) throw_not_made({"the run directory", path, kOtherDirectory}, error.value());
}

// Runs that start in the same second, as in a job array, want the same name.
void RunDirectory::make_new(const std::string& name) {
  const fs::path parent = fs::path(name).parent_path();
  bool is_new = false;
  for (int number = 1; !is_new; ++number) {
    path_ = number == 1 ? name : fmt::format("{}-{}", name, number);
    made_ = missing_directories(path_);
    std::error_code error;
    fs::create_directories(parent, error);
    if (!error) is_new = fs::create_directory(path_, error);
    if (error) throw_not_made({"the run directory", path_, kOtherDirectory}, error.value());
  }
}

void RunDirectory::lock(Log& log, std::chrono::milliseconds wait) {
  const std::string path = (fs::path(path_) / kLockFile).string();
  for (;;) {
    file_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (file_ < 0) refuse_lock_file(path, errno);
    const bool is_taken = take_lock(log, wait);
    if (is_taken && is_file(file_, path)) return;
    ::close(std::exchange(file_, -1));
    if (is_taken) {  // by a run that was refused and removed its directory
      make_named(path_);
      continue;
    }
    made_.clear();  // the directory belongs to the other run
    throw ConfigError("another run is writing to the run directory " + path_,
                      "wait for it to end, or give another --run-dir");
  }
}

// Returns false where another run has the lock. Returns true where the file system has no locks:
// most runs are alone.
bool RunDirectory::take_lock(Log& log, std::chrono::milliseconds wait) {
  constexpr auto kPause = std::chrono::milliseconds(20);
  const auto until = std::chrono::steady_clock::now() + wait;
  for (bool is_first = true;; is_first = false) {
    const FileLock lock = try_lock(file_);
    if (lock.kind == FileLock::Kind::kNotThere) {
      log.warning(fmt::format(
          "the run directory {} cannot be locked: {}; make sure that no other run writes to it",
          path_, std::strerror(lock.error_number)));
    }
    if (lock.kind != FileLock::Kind::kHeldByOther) return true;
    if (std::chrono::steady_clock::now() >= until) return false;
    if (is_first) {
      log.info(
          fmt::format("another run is writing to the run directory {}: waiting {:.0f} s for it to "
                      "end",
                      path_, std::chrono::duration<double>(wait).count()));
    }
    std::this_thread::sleep_for(kPause);
  }
}

void RunDirectory::remove_made() noexcept {
  std::error_code ignored;
  if (!made_.empty()) fs::remove(fs::path(path_) / kLockFile, ignored);
  for (const std::string& directory : made_) {  // only the empty ones
    if (!fs::remove(directory, ignored)) return;
  }
}

RunDirectory::~RunDirectory() {
  remove_made();
  ::close(file_);
}

void keep_foreign_config(const std::string& run_dir, Log& log) {
  FileSystem& disk = system_files();
  const std::string path = config_file(run_dir);
  if (!disk.exists(path) || disk.exists(run_file(run_dir))) return;
  const std::string before = path + ".before";
  const std::string kept = disk.exists(before) ? read_whole_file(disk, before) : "";
  write_durable_file(before, kept + read_whole_file(disk, path));
  log.warning(
      fmt::format("{} is replaced by the options of this run; the file that was there is now {}",
                  path, before));
}

void write_run_files(const std::string& run_dir, const TrainCommand& command, const RunPlan& plan,
                     const std::string& documents) {
  write_durable_file(config_file(run_dir), config_of(run_dir, command.options));
  nlohmann::ordered_json run;
  run["schema"] = "terrace.run/1";
  run["version"] = terrace_version();
  run["started"] = time_text("%Y-%m-%dT%H:%M:%SZ");
  run["host"] = nlohmann::ordered_json::parse(host_facts_json());
  run["command_line"] = command.command_line;
  run["program"] = plan.summary;
  if (!plan.reasons.empty()) run["reasons"] = nlohmann::ordered_json::parse(plan.reasons);
  if (!plan.figures.empty()) run.update(nlohmann::ordered_json::parse(plan.figures));
  if (plan.mesh.ranks() > 1) run["mesh"] = mesh_json(plan.mesh);
  if (!plan.rank_shares.empty()) {
    run["rank_shares"] = nlohmann::ordered_json::parse(plan.rank_shares);
  }
  if (plan.data_hash) run["training_data_hash"] = fmt::format("{:016x}", *plan.data_hash);
  const SaveInterval& every = command.options.run.checkpoint_every;
  if (every.is_automatic && every.steps > 0) run[kAutomaticStepsKey] = every.steps;
  if (!documents.empty()) run["data"] = nlohmann::ordered_json::parse(documents);
  write_durable_file(run_file(run_dir), dump(run) + "\n");
}

void write_save_interval(const std::string& run_dir, const TrainOptions& options,
                         const SaveInterval& chosen, Log& log) {
  TrainOptions with_chosen = options;
  with_chosen.run.checkpoint_every = chosen;
  const std::string path = config_file(run_dir);
  std::string why = "the file was changed during the run";
  try {
    if (read_whole_file(system_files(), path) == config_of(run_dir, options)) {
      add_to_run_file(run_dir, kAutomaticStepsKey, chosen.steps);
      return write_durable_file(path, config_of(run_dir, with_chosen));
    }
  } catch (const IoError& problem) {
    why = problem.what();
  }
  log.warning(
      fmt::format("{}: cannot write the number of steps of --checkpoint-every auto: {}; a resumed "
                  "run will choose it again",
                  path, why));
}

void write_steps_of_result(const std::string& run_dir, std::int64_t steps) {
  add_to_run_file(run_dir, kResultKey, steps);
}

void write_measured(const std::string& run_dir, const std::string& measured) {
  add_to_run_file(run_dir, "measured", nlohmann::ordered_json::parse(measured));
}

void write_fact(const std::string& run_dir, const std::string& key, const std::string& json) {
  add_to_run_file(run_dir, key, nlohmann::ordered_json::parse(json));
}

std::optional<std::int64_t> steps_of_result(const std::string& run_dir) {
  const nlohmann::ordered_json run = read_run_file(run_dir);
  if (!run.is_object() || !run.contains(kResultKey)) return std::nullopt;
  const nlohmann::ordered_json& steps = run[kResultKey];
  if (!steps.is_number_integer()) return std::nullopt;
  return steps.get<std::int64_t>();
}

}  // namespace terrace
