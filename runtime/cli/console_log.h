#pragma once

#include <functional>
#include <mutex>
#include <string_view>
#include <utility>

#include "base/log.h"

namespace terrace {

// Writes it whole; where it cannot be written, as to a console that is gone or that nobody has read
// for some seconds, nothing is said.
void write_to_standard_error(std::string_view text);

// Takes what is to be written to standard error.
using ErrorSink = std::function<void(std::string_view text)>;

// The program's log: whole lines on standard error, "terrace: ..." and "terrace: warning: ...".
class ConsoleLog final : public Log {
 public:
  explicit ConsoleLog(ErrorSink sink = write_to_standard_error) : sink_(std::move(sink)) {}

  const ErrorSink& sink() const { return sink_; }

  void info(std::string_view line) override;
  void warning(std::string_view line) override;

 private:
  void write(std::string_view prefix, std::string_view line);

  const ErrorSink sink_;
  std::mutex mutex_;  // one line at a time
};

}  // namespace terrace
