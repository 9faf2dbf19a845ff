#include "runtime/cli/stop_signals.h"

#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <ctime>
#include <string_view>

#include "base/error.h"

namespace terrace {
namespace {

StopRequest stop;                             // within reach of signal handlers
std::atomic<bool> ends_at_once{false};        // if the run does not listen yet
std::atomic<std::int64_t> interrupted_ns{0};  // time of the first SIGINT; 0: none came

// Two SIGINTs within this time are one: a launcher may pass on a SIGINT that the terminal, or
// timeout(1), has sent to the run as well.
constexpr std::int64_t kSameInterruptNs = 300'000'000;

std::int64_t now_ns() {
  timespec time = {};
  clock_gettime(CLOCK_MONOTONIC, &time);  // a handler may call this
  return std::int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

// Ends the program by the signal once the handler has returned.
void die_of(int number) {
  std::signal(number, SIG_DFL);
  raise(number);
}

// Writes using only functions that a signal handler may call. Does not write if that would wait for
// a reader.
void write_from_handler(std::string_view text) {
  pollfd ready = {.fd = STDERR_FILENO, .events = POLLOUT, .revents = 0};
  if (::poll(&ready, 1, 0) != 1) return;
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, text.data(), text.size());
}

// Handles a stop signal. Ends the program at once if the run does not listen yet: planning a step
// can take minutes, during which there is nothing to save.
void request_stop(int number) {
  const int error_number = errno;
  if (number == SIGINT) {
    std::int64_t first_ns = 0;
    const bool is_second = !interrupted_ns.compare_exchange_strong(first_ns, now_ns());
    if (is_second && now_ns() - first_ns < kSameInterruptNs) return;
    if (is_second) return die_of(number);
  }
  stop.signal = number;
  if (!stop.is_heard && ends_at_once) {
    write_from_handler("terrace: a signal ended the run before its first step\n");
    _exit(kExitSavedOnSignal);
  }
  if (number == SIGINT) {
    write_from_handler(
        "\n"
        "terrace: interrupted: saving after the current step; interrupt again to end at once, "
        "without saving\n");
  }
  errno = error_number;
}

bool is_ignored(int number) {
  struct sigaction before = {};
  return sigaction(number, nullptr, &before) == 0 && before.sa_handler == SIG_IGN;
}

void install(int number) {
  if (is_ignored(number)) return;
  struct sigaction action = {};
  action.sa_handler = request_stop;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  if (sigaction(number, &action, nullptr) != 0) {
    throw IoError({.operation = "sigaction", .path = "signal", .error_number = errno});
  }
}

}  // namespace

StopRequest& install_stop_signals(bool is_alone) {
  // A console whose reader has gone does not end the run (SIGPIPE). A console that this process may
  // not write to, because it is a background job, does not stop it (SIGTTOU).
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGTTOU, SIG_IGN);
  ends_at_once = is_alone;
  for (const int number : {SIGTERM, SIGUSR1, SIGHUP, SIGINT}) install(number);
  return stop;
}

}  // namespace terrace
