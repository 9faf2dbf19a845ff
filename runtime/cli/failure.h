#pragma once

#include <exception>

#include "runtime/cli/console_log.h"

namespace terrace {

inline constexpr int kExitUsage = 2;

// Says on standard error, or to `sink`, what ended the program and what to do. Returns the exit
// code of the error's type.
int report_failure(const std::exception& error, const ErrorSink& sink = write_to_standard_error);

}  // namespace terrace
