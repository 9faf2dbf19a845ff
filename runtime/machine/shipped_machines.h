#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "runtime/machine/machine.h"

// The machines whose profiles come with the program: the files in runtime/machine/shipped/. Each
// figure names the document that states it.
namespace terrace {

std::vector<std::string> shipped_machine_names();
// Returns a machine by its name. Throws ConfigError, which lists the names.
Machine shipped_machine(std::string_view name);

// Returns a shipped machine, or the machine of a file: a name without a slash and without ".toml"
// is one that is shipped. Throws ConfigError and IoError.
Machine find_machine(const std::string& name_or_file);

}  // namespace terrace
