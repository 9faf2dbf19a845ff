#pragma once

#include <exception>

namespace terrace {

inline constexpr int kExitUsage = 2;

// Says on standard error what ended the program and what to do. Returns the exit code of the
// error's type.
int report_failure(const std::exception& error);

}  // namespace terrace
