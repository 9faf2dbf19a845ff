#pragma once

#include <functional>
#include <mutex>
#include <string_view>
#include <utility>

#include "base/log.h"

namespace terrace {

// Writes the whole text. Drops it without a report if it cannot be written, for example because the
// console is gone or has not been read from for some seconds.
void write_to_standard_error(std::string_view text);

// A function that takes text for standard error.
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
