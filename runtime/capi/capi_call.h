#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "base/log.h"
#include "runtime/capi/capi_error.h"
#include "runtime/capi/terrace.h"

// The steps that all functions of the C interface take around their work.
namespace terrace {

// A log that calls a callback, if there is one.
class CallbackLog final : public Log {
 public:
  CallbackLog(terrace_log_callback callback, void* user) : callback_(callback), user_(user) {}

  void info(std::string_view line) override { tell(TERRACE_LOG_INFO, line); }
  void warning(std::string_view line) override { tell(TERRACE_LOG_WARNING, line); }

 private:
  void tell(std::int32_t level, std::string_view line) {
    if (callback_ != nullptr) callback_(level, std::string(line).c_str(), user_);
  }

  const terrace_log_callback callback_;
  void* const user_;
};

// Runs the body, and turns an exception that it throws into an error.
template <typename Body>
terrace_error guarded(Body body) noexcept {
  try {
    body();
    return TERRACE_OK;
  } catch (...) {
    return report_exception();
  }
}

// Refuses a handle that is null, and one that another process has made.
terrace_error check_owner(const void* handle, pid_t owner) noexcept;

// Throws where the caller's struct is given and has a wrong size.
void check_result(const terrace_step_result* result);

// Writes a text as terrace_ledger_json() gives it.
void write_text(const std::string& text, char* out, std::uint64_t capacity, std::uint64_t* size);

}  // namespace terrace
