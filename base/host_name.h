#pragma once

#include <string>

namespace terrace {

// The name of this machine, as gethostname() tells it; empty where it has none.
std::string host_name();

}  // namespace terrace
