#pragma once

#include <string>

#include "base/error.h"

// Paths that people give as the directory of a model or an adapter.
namespace terrace {

// Returns the directory to read: the snapshot for a directory of the Hugging Face hub's cache
// (hub_snapshot()), any other path as it is, also a preset's name and a path that is not there.
// Throws ConfigError for a file, with the directory to name instead.
std::string directory_of_model(const std::string& path);

// Returns the error for a path that is neither a directory nor a preset. It says how to get a model
// of the hub, and names a preset where the text is close to its name.
ConfigError absent_model_error(const std::string& path);

// Returns the error for a directory without a config.json. It names the directories in it that have
// one, such as the final/ of a run.
ConfigError no_config_error(const std::string& directory);

}  // namespace terrace
