#pragma once

#include <mutex>
#include <string_view>

#include "base/log.h"
#include "runtime/cli/progress_console.h"

namespace terrace {

// Writes it whole; where it cannot be written, as to a console that is gone, nothing is said.
void write_to_standard_error(std::string_view text);

// The program's log: whole lines on standard error, "terrace: ..." and "terrace: warning: ...".
class ConsoleLog final : public Log {
 public:
  // Keeps its lines apart from the console's line of progress. Borrows the console, if any.
  explicit ConsoleLog(ProgressConsole* console = nullptr) : console_(console) {}

  void info(std::string_view line) override;
  void warning(std::string_view line) override;

 private:
  void write(std::string_view prefix, std::string_view line);

  ProgressConsole* const console_;
  std::mutex mutex_;  // one line at a time
};

}  // namespace terrace
