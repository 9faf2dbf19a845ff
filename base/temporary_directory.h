#pragma once

#include <string>

namespace terrace {

// Returns the directory for temporary files that may be large: $TMPDIR, else /var/tmp, which is on
// a disk where /tmp is memory, else /tmp. Thread-safe while nobody changes the environment.
std::string temporary_directory();

}  // namespace terrace
