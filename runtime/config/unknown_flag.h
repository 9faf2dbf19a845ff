#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/error.h"
#include "runtime/config/flag_reader.h"

// The error for a flag, or a key of a file, that a command does not have.
namespace terrace {

// Returns the error for a flag as it was written, "--eval-steps". If another program has a flag of
// this name (foreign_flags.h), the remedy is our flag that does the same; otherwise it is the
// nearest flag. For a command other than `terrace train` that lacks one of train's flags, the
// remedy says so. A flag of the interface that is not built yet is named as such.
ConfigError unknown_flag_error(std::string_view written, std::span<const FlagSpec> flags);

// Returns the same error for a key of the file `path`, with keys instead of flags.
ConfigError unknown_key_error(std::string_view path, std::string_view key,
                              std::span<const FlagSpec> flags);

// Returns the part of a command's help that lists its flags that are not built yet; empty where it
// has none.
std::string unbuilt_flags_help(std::span<const FlagSpec> flags);

}  // namespace terrace
