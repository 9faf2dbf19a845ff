#pragma once

#include <string_view>

namespace terrace {

// Returns the version of the project, such as "0.2.0".
std::string_view terrace_version();

}  // namespace terrace
