#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/log.h"
#include "runtime/train/trainer.h"

namespace terrace {

// The run directory of a command ("runs/<model>-<time>" unless named, with a number behind it where
// another run of that second has the name), made and held by the run that writes to it (flock on
// its file "lock"). One that did not exist goes with the object unless keep() was called: a run
// that is refused leaves none behind.
class RunDirectory {
 public:
  // How long it waits for another run that is about to end: one whose mpirun was killed.
  static constexpr auto kWait = std::chrono::seconds(5);

  // Throws as throw_not_made() does if it cannot be made, and ConfigError if another run holds it,
  // and still does after `wait`. Says in the log that it waits, and where the file system has no
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

// Keeps a config.toml that no run has written, as run.json is not beside it, in config.toml.before,
// behind what is there, and says so in the log. Throws IoError.
void keep_foreign_config(const std::string& run_dir, Log& log);

// config.toml and run.json: what was asked for, by whom it is run, what was compiled, and
// documents_json() of the data.
void write_run_files(const std::string& run_dir, const TrainCommand& command,
                     const std::string& program_summary, const std::string& documents = {});

// Writes the number of steps that --checkpoint-every auto has chosen into run.json and config.toml.
// Where
// somebody has changed the file since write_run_files(), or it cannot be written, the log says that
// the next start will choose again.
void write_save_interval(const std::string& run_dir, const TrainOptions& options,
                         const SaveInterval& chosen, Log& log);

// Adds to run.json that final/ is the result of so many steps; the next run's write_run_files()
// takes it back. Throws IoError.
void write_steps_of_result(const std::string& run_dir, std::int64_t steps);
// Adds to run.json what the first steps took, a JSON object. Throws IoError.
void write_measured(const std::string& run_dir, const std::string& measured);
// What write_steps_of_result() says; none where it does not, or cannot be read.
std::optional<std::int64_t> steps_of_result(const std::string& run_dir);

}  // namespace terrace
