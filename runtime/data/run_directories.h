#pragma once

#include <string>
#include <vector>

// Directories that `terrace train` writes to. They are known by their files, and they are no data.
namespace terrace {

// Returns whether the directory belongs to a run. Such a directory has the files config.toml,
// run.json and lock, or lock alone if the run was killed before its first step.
bool is_run_directory(const std::string& path);

// Returns the run directories below those of `paths` that are directories, in byte order. Does not
// look inside run directories, nor inside hidden ones.
std::vector<std::string> run_directories_below(const std::vector<std::string>& paths);

// Returns a sentence that says which of them are left out of `flag`; empty where there are none.
std::string describe_left_out(const std::string& flag, const std::vector<std::string>& runs);

}  // namespace terrace
