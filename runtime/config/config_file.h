#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/config/flag_reader.h"

namespace terrace {

// Returns the values that a TOML file has for the flags, in the table's order. Throws ConfigError
// for a file that does not exist or is not TOML, for an unknown key (naming the nearest one), and
// for a value that no flag takes.
std::vector<std::optional<FlagValue>> read_config_file(const std::string& path,
                                                       std::span<const FlagSpec> flags);

}  // namespace terrace
