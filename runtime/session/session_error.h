#pragma once

#include <cstdint>
#include <string>

#include "base/usage_error.h"

namespace terrace {

// The reason why a call of a ParameterSession was refused.
enum class SessionProblem : std::uint8_t {
  kArgument,
  kOrder,
  kDType,
  kUnsupported,
  kMismatch,
  kMissingGradient,
  kParameterChanged,
  kFailed,
};

class SessionError : public UsageError {
 public:
  SessionError(SessionProblem problem, const std::string& what_happened, const std::string& remedy)
      : UsageError(what_happened, remedy), problem_(problem) {}

  SessionProblem problem() const { return problem_; }

 private:
  SessionProblem problem_;
};

}  // namespace terrace
