#pragma once

#include <string>

// The cache of the Hugging Face hub. A model A/B is there in a directory models--A--B, whose
// snapshots/COMMIT has the files of one revision and whose refs/main names the commit of the main
// revision.
namespace terrace {

// Returns the snapshot to read where `path` is such a directory, or its folder snapshots: the one
// that refs/main names, or the only one. Returns any other path as it is. Throws ConfigError, which
// names the snapshots, where several are there and refs/main names none of them.
std::string hub_snapshot(const std::string& path);

// Returns the name of the model in a directory: the name of the directory, or B for a snapshot of
// models--A--B. Empty for a path without a name, for example "/".
std::string model_name_of(const std::string& directory);

// Returns the directory of the model "A/B" in the cache of this user; empty where it is not there.
std::string find_in_hub_cache(const std::string& model);

}  // namespace terrace
