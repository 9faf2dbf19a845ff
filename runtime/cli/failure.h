#pragma once

#include <exception>
#include <string>
#include <string_view>

#include "runtime/cli/console_log.h"

namespace terrace {

inline constexpr int kExitUsage = 2;
inline constexpr int kExitDiffers = 7;  // of terrace diff: no failure

// An unforeseen exception (base/failure_text.h), and what a command was doing when it came.
class UnforeseenFailure : public std::exception {
 public:
  UnforeseenFailure(const std::exception& failure, std::string doing);

  const char* what() const noexcept override { return kind_.c_str(); }
  const std::string& kind() const { return kind_; }
  // Returns what the command was doing, in words: "it measured store_read".
  const std::string& doing() const { return doing_; }

 private:
  std::string kind_;
  std::string doing_;
};

// Says on standard error, or to `sink`, what ended a command ("terrace train") and what to do. An
// unforeseen exception is reported as a defect of Terrace, without the text that a library put into
// it. Returns the exit code of the error's type.
int report_failure(const std::exception& error, std::string_view command,
                   const ErrorSink& sink = write_to_standard_error);

}  // namespace terrace
