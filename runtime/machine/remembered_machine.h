#pragma once

#include <optional>
#include <string>

#include "runtime/machine/machine.h"

// The profile of this machine that was measured last. It is kept in the user's cache directory, in
// a file with the name of the host, because home directories may be shared.
namespace terrace {

// Keeps the text of a profile, and returns the path of the file; empty where it cannot be kept.
std::string remember_machine(const std::string& text);
// Returns the profile; none where there is none. Throws ConfigError where the file is damaged.
std::optional<Machine> remembered_machine();

}  // namespace terrace
