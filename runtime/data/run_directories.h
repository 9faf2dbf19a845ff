#pragma once

#include <string>
#include <vector>

// Directories that `terrace train` writes to, as they are known by their files. They are no data.
namespace terrace {

// Returns whether the directory is that of a run: it has the files config.toml, run.json and lock;
// or lock alone, which a run that was killed before its first step has left.
bool is_run_directory(const std::string& path);

// Returns the run directories below those of `paths` that are directories, in byte order. None is
// looked for in a run directory, nor in a hidden one.
std::vector<std::string> run_directories_below(const std::vector<std::string>& paths);

// Returns a sentence that says which of them are left out of `flag`; empty where there are none.
std::string describe_left_out(const std::string& flag, const std::vector<std::string>& runs);

}  // namespace terrace
