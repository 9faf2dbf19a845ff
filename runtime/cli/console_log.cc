#include "runtime/cli/console_log.h"

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace terrace {

// Writes in pieces: a pipe that can be written to takes a piece of this size without waiting.
void write_to_standard_error(std::string_view text) {
  constexpr std::size_t kPieceBytes = 4096;
  constexpr int kWaitMs = 3000;
  while (!text.empty()) {
    pollfd ready = {.fd = STDERR_FILENO, .events = POLLOUT, .revents = 0};
    const int count = ::poll(&ready, 1, kWaitMs);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return;
    const ssize_t written = ::write(STDERR_FILENO, text.data(), std::min(kPieceBytes, text.size()));
    if (written < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (written <= 0) return;  // an error here could not be reported either
    text.remove_prefix(static_cast<std::size_t>(written));
  }
}

void ConsoleLog::write(std::string_view prefix, std::string_view line) {
  const std::scoped_lock lock(mutex_);
  sink_(fmt::format("{}{}\n", prefix, line));
}

void ConsoleLog::info(std::string_view line) { write("terrace: ", line); }

void ConsoleLog::warning(std::string_view line) { write("terrace: warning: ", line); }

}  // namespace terrace
