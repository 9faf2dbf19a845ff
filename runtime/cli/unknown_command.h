#pragma once

#include <span>
#include <string_view>

#include "base/error.h"

namespace terrace {

// Returns the error for a word that is not a command. `built` are the names of the commands that
// can be run. The remedy is the command that does what the word means in other programs, what does
// it instead of a command, or the command whose name is spelled almost like the word.
ConfigError unknown_command_error(std::string_view name, std::span<const std::string_view> built);

}  // namespace terrace
