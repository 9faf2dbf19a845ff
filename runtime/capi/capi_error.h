#pragma once

#include <cstdint>

#include "runtime/capi/terrace.h"

namespace terrace {

// Keeps the description for this thread's terrace_last_error(), and returns the error. Text that is
// too long is cut.
terrace_error report(terrace_error error, const char* what) noexcept;
// Does the same for the exception that is being handled.
terrace_error report_exception() noexcept;
const char* last_report() noexcept;
// Returns the name of an error; "unknown" for any other number.
const char* name_of_error(std::int32_t error) noexcept;

}  // namespace terrace
