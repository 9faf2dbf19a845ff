#include "runtime/cli/console_log.h"

#include <fmt/format.h>

#include <cstdio>

namespace terrace {

void ConsoleLog::write(std::string_view prefix, std::string_view line) {
  const std::scoped_lock lock(mutex_);
  fmt::print(stderr, "{}{}\n", prefix, line);
}

void ConsoleLog::info(std::string_view line) { write("terrace: ", line); }

void ConsoleLog::warning(std::string_view line) { write("terrace: warning: ", line); }

}  // namespace terrace
