#pragma once

#include <string>

namespace terrace {

// Returns the name of this machine as gethostname() tells it, or an empty text if it has none.
std::string host_name();

}  // namespace terrace
