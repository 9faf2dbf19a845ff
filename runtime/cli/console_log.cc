#include "runtime/cli/console_log.h"

#include <fmt/format.h>

#include <cstdio>

namespace terrace {

void write_to_standard_error(std::string_view text) {
  // What cannot be written cannot be said either.
  [[maybe_unused]] const auto written = std::fwrite(text.data(), 1, text.size(), stderr);
}

void ConsoleLog::write(std::string_view prefix, std::string_view line) {
  const std::scoped_lock lock(mutex_);
  const auto write = [&] { write_to_standard_error(fmt::format("{}{}\n", prefix, line)); };
  if (console_ != nullptr) {
    console_->above_progress(write);
  } else {
    write();
  }
}

void ConsoleLog::info(std::string_view line) { write("terrace: ", line); }

void ConsoleLog::warning(std::string_view line) { write("terrace: warning: ", line); }

}  // namespace terrace
