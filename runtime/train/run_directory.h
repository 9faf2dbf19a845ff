#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/train/trainer.h"

namespace terrace {

// The run directory of a command ("runs/<model>-<time>" unless named), made and held by the run
// that writes to it (flock on its file "lock"). One that did not exist goes with the object unless
// keep() was called: a run that is refused leaves none behind.
class RunDirectory {
 public:
  // Throws ConfigError if it cannot be made, or if another run holds it.
  explicit RunDirectory(const TrainOptions& options);
  ~RunDirectory();
  RunDirectory(const RunDirectory&) = delete;
  RunDirectory& operator=(const RunDirectory&) = delete;

  const std::string& path() const { return path_; }
  void keep() { made_.clear(); }

 private:
  void lock();
  void remove_made() noexcept;

  std::string path_;
  int file_ = -1;
  std::vector<std::string> made_;  // directories that did not exist, the innermost first
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
