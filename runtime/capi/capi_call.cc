#include "runtime/capi/capi_call.h"

#include <unistd.h>

#include <cstring>

#include "runtime/capi/capi_options.h"
#include "runtime/session/session_error.h"

namespace terrace {

terrace_error check_owner(const void* handle, pid_t owner) noexcept {
  if (handle == nullptr) {
    return report(TERRACE_ERROR_ARGUMENT,
                  "the session is NULL; make one by terrace_session_create() or "
                  "terrace_units_create()");
  }
  if (owner == getpid()) return TERRACE_OK;
  return report(TERRACE_ERROR_FORKED,
                "this process was forked from the one that made the session, and does not have its "
                "threads; start processes by \"spawn\", or make the session in this process");
}

void check_result(const terrace_step_result* result) {
  if (result != nullptr) check_struct(result, sizeof(*result), "terrace_step_result");
}

void write_text(const std::string& text, char* out, std::uint64_t capacity, std::uint64_t* size) {
  check_pointer(size, "size");
  *size = text.size() + 1;
  if (capacity == 0) return;
  check_pointer(out, "text");
  if (capacity < *size) {
    throw SessionError(SessionProblem::kArgument,
                       "the text has " + std::to_string(*size) + " bytes, and capacity is " +
                           std::to_string(capacity),
                       "ask for the size first");
  }
  std::memcpy(out, text.c_str(), text.size() + 1);
}

}  // namespace terrace
