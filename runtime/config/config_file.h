#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/config/flag_reader.h"

namespace terrace {

// What a TOML file gives for each flag, in the table's order. Throws ConfigError for a file that is
// not there or not TOML, for an unknown key with the nearest one, and for a value that no flag
// takes.
std::vector<std::optional<FlagValue>> read_config_file(const std::string& path,
                                                       std::span<const FlagSpec> flags);

}  // namespace terrace
