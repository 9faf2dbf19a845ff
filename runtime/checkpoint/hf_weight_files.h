#pragma once

#include <string>

#include "base/error.h"

// Which files of a model directory have its weights.
namespace terrace {

// The file with all tensors, where they are in one file.
inline constexpr const char* kHfSingleFile = "model.safetensors";
// The file that says which file has which tensor, where there are several.
inline constexpr const char* kHfIndexFile = "model.safetensors.index.json";

// Returns whether a directory has weights to load: safetensors with or without an index. A link
// that leads nowhere does not count. Returns false for a name that is not a directory (a preset).
bool has_hf_weights(const std::string& directory);

// Returns whether a directory has files that look like weights, under any name.
bool has_files_like_weights(const std::string& directory);

// Returns the error for a directory without weights that can be loaded. It names the files that
// look like weights and says what makes them loadable, or that there are none; `or_else` is a
// remedy that always works.
ConfigError no_hf_weights(const std::string& directory, const std::string& or_else);

}  // namespace terrace
