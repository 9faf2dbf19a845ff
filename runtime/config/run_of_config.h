#pragma once

#include <cstdint>
#include <optional>
#include <string>

// Facts that follow from the run directory in which a file of --config lies.
namespace terrace {

// Returns the directory of the file of --config, as an absolute path, if the file is the
// config.toml of a run: run.json or a checkpoint is beside it. None for any other file.
std::optional<std::string> run_of_config(const std::string& path);

// The key of run.json for the number of steps that --checkpoint-every auto has chosen. config.toml
// has the number too; it counts as automatic only as long as the two are equal.
inline constexpr const char* kAutomaticStepsKey = "automatic_checkpoint_every";
// Returns that number; 0 where none is chosen, or where it cannot be read.
std::int64_t automatic_save_steps(const std::string& run_dir);

// Throws ConfigError where --resume auto would look for checkpoints in `run_dir` and find none,
// while checkpoints lie beside the file of --config. That file is then a copy of a config.toml
// under another name.
void refuse_passing_over(const std::string& path, const std::string& run_dir);

}  // namespace terrace
