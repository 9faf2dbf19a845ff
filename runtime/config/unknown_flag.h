#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/error.h"
#include "runtime/config/flag_reader.h"

// What to say of a flag, or a key of a file, that a command does not have.
namespace terrace {

// Returns the error for a flag as it was written, "--eval-steps". Its remedy is the flag of ours
// that does the same, where Hugging Face, torchtitan or Megatron has one of this name; else the
// nearest flag; where a command other than `terrace train` does not have one of train's flags, this
// is said. A flag of the interface that is not built yet is named as such.
ConfigError unknown_flag_error(std::string_view written, std::span<const FlagSpec> flags);

// Returns the same for a key of the file `path`, with keys in place of flags.
ConfigError unknown_key_error(std::string_view path, std::string_view key,
                              std::span<const FlagSpec> flags);

// Returns the part of a command's help that lists its flags that are not built yet; empty where it
// has none.
std::string unbuilt_flags_help(std::span<const FlagSpec> flags);

}  // namespace terrace
