#pragma once

#include <cstdint>

#include "runtime/capi/terrace.h"

namespace terrace {

// Keeps what happened for terrace_last_error() of this thread, and returns the error. Text that is
// too long is cut.
terrace_error report(terrace_error error, const char* what) noexcept;
// The same of the exception that is being handled.
terrace_error report_exception() noexcept;
const char* last_report() noexcept;
// "unknown" of another number.
const char* name_of_error(std::int32_t error) noexcept;

}  // namespace terrace
