#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "runtime/train/trainer.h"

namespace terrace {

// Makes the run directory of a command ("runs/<model>-<time>" unless named) and returns its path.
// Throws ConfigError if it cannot be made.
std::string make_run_directory(const TrainOptions& options);

// Held by the run that writes to a run directory, while it lives (flock on its file "lock").
class RunDirectoryLock {
 public:
  // Throws ConfigError if another run holds it.
  explicit RunDirectoryLock(const std::string& run_dir);
  ~RunDirectoryLock();
  RunDirectoryLock(const RunDirectoryLock&) = delete;
  RunDirectoryLock& operator=(const RunDirectoryLock&) = delete;

 private:
  int file_;
};

// config.toml and run.json: what was asked for, by whom it is run and what was compiled.
void write_run_files(const std::string& run_dir, const TrainCommand& command,
                     const std::string& program_summary);

// Adds to run.json that final/ is the result of so many steps; the next run's write_run_files()
// takes it back. Throws IoError.
void write_steps_of_result(const std::string& run_dir, std::int64_t steps);
// What that says; none where it does not, or cannot be read.
std::optional<std::int64_t> steps_of_result(const std::string& run_dir);

}  // namespace terrace
