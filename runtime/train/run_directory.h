#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/log.h"
#include "parallel/mesh.h"
#include "runtime/train/trainer.h"

namespace terrace {

// The run directory of a command: "runs/<model>-<time>" unless it is named, with a number appended
// where another run of the same second has the name. The run that writes to it makes it and holds
// it (flock on its file "lock"). A directory that did not exist before is removed with the object
// unless keep() was called: a run that is refused leaves none behind.
class RunDirectory {
 public:
  // How long to wait for another run that is about to end, such as one whose mpirun was killed.
  static constexpr auto kWait = std::chrono::seconds(5);

  // Throws as throw_not_made() does if the directory cannot be made, and ConfigError if another run
  // still holds it after `wait`. Says in the log that it waits, or that the file system has no
  // locks.
  RunDirectory(const TrainOptions& options, Log& log, std::chrono::milliseconds wait = kWait);
  ~RunDirectory();
  RunDirectory(const RunDirectory&) = delete;
  RunDirectory& operator=(const RunDirectory&) = delete;

  const std::string& path() const { return path_; }
  void keep() { made_.clear(); }

 private:
  void make_named(const std::string& path);
  void make_new(const std::string& name);
  void lock(Log& log, std::chrono::milliseconds wait);
  bool take_lock(Log& log, std::chrono::milliseconds wait);
  void remove_made() noexcept;

  std::string path_;
  int file_ = -1;
  std::vector<std::string> made_;  // directories that did not exist, the innermost first
};

// Appends a config.toml that no run has written (run.json is not beside it) to config.toml.before,
// and says so in the log. Throws IoError.
void keep_foreign_config(const std::string& run_dir, Log& log);

// The compiled step and the data that it trains on, as run.json describes them.
struct RunPlan {
  std::string summary;
  std::string reasons = {};  // reasons_json()
  std::string figures = {};  // plan_figures_json(): keys that run.json gets beside the others
  MeshShape mesh = {};
  std::string rank_shares = {};                           // StepFeed::shares_json()
  std::optional<std::uint64_t> data_hash = std::nullopt;  // Dataset::training_hash()
};

// Writes config.toml and run.json: the options, who runs them, the compiled step, and
// documents_json() of the data.
void write_run_files(const std::string& run_dir, const TrainCommand& command, const RunPlan& plan,
                     const std::string& documents = {});

// Writes the number of steps that --checkpoint-every auto has chosen into run.json and config.toml.
// If somebody has changed the file since write_run_files(), or if it cannot be written, the log
// says that the next start will choose again.
void write_save_interval(const std::string& run_dir, const TrainOptions& options,
                         const SaveInterval& chosen, Log& log);

// Records in run.json that final/ is the result of `steps` steps; the next run's write_run_files()
// removes the record. Throws IoError.
void write_steps_of_result(const std::string& run_dir, std::int64_t steps);
// Adds to run.json the time and memory that the first steps took, a JSON object. Throws IoError.
void write_measured(const std::string& run_dir, const std::string& measured);
// Adds to run.json a JSON object that a run knows only once it has begun, such as the waits of the
// compute lane. Throws IoError.
void write_fact(const std::string& run_dir, const std::string& key, const std::string& json);
// Returns the number that write_steps_of_result() recorded; none where there is no record, or it
// cannot be read.
std::optional<std::int64_t> steps_of_result(const std::string& run_dir);

}  // namespace terrace
