#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "base/log.h"
#include "runtime/capi/capi_error.h"
#include "runtime/capi/terrace.h"

// What all functions of the C interface do around their work.
namespace terrace {

// Tells a callback, if there is one.
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

// Runs the body, and makes an error of what it throws.
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

// Throws where the caller's struct is there and has no right size.
void check_result(const terrace_step_result* result);

// A text as terrace_ledger_json() gives it.
void write_text(const std::string& text, char* out, std::uint64_t capacity, std::uint64_t* size);

}  // namespace terrace
