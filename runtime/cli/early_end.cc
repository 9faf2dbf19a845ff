#include "runtime/cli/early_end.h"

#include <fmt/format.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <exception>
#include <filesystem>

#include "base/error.h"

namespace terrace {
namespace {

constexpr int kExitCannotWrite = 1;
constexpr int kOfSignals = 128;

// Returns the signals among these three that had their default action, ending the program, when it
// began.
sigset_t signals_to_watch() {
  sigset_t set;
  sigemptyset(&set);
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
    struct sigaction action = {};
    if (::sigaction(number, nullptr, &action) == 0 && action.sa_handler == SIG_DFL) {
      sigaddset(&set, number);
    }
  }
  return set;
}

int checked(int descriptor, const char* operation) {
  if (descriptor >= 0) return descriptor;
  throw EnvironmentError(fmt::format("{} failed: {}", operation, std::strerror(errno)),
                         "raise the limit on open files (ulimit -n)");
}

// Returns how many milliseconds poll(2) may wait, the grace time included; -1 where there is no
// deadline.
int wait_ms(const Deadline& deadline, double grace_s) {
  if (!deadline.is_set()) return -1;
  constexpr double kMost = 1e9;
  const double left_s = std::max(0.0, deadline.seconds_left() + grace_s);
  return static_cast<int>(std::min(kMost, std::ceil(left_s * 1e3)));
}

bool has_files_of_this_process(const std::string& directory) {
  const std::string begin = fmt::format("terrace-{}-", ::getpid());
  std::error_code problem;
  for (const auto& entry : std::filesystem::directory_iterator(directory, problem)) {
    if (entry.path().filename().string().starts_with(begin)) return true;
  }
  return false;
}

}  // namespace

EarlyEnd::EarlyEnd(Options options) : options_(std::move(options)) {
  const sigset_t signals = signals_to_watch();
  stop_ = checked(::eventfd(0, EFD_CLOEXEC), "eventfd");
  signals_ = checked(::signalfd(-1, &signals, SFD_CLOEXEC), "signalfd");
  ::pthread_sigmask(SIG_BLOCK, &signals, &mask_before_);
  watcher_ = std::thread([this] { watch(); });
}

EarlyEnd::~EarlyEnd() {
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written = ::write(stop_, &one, sizeof(one));
  watcher_.join();
  ::pthread_sigmask(SIG_SETMASK, &mask_before_, nullptr);
  ::close(signals_);
  ::close(stop_);
}

void EarlyEnd::watch() {
  while (true) {
    std::array<pollfd, 2> waits = {{{signals_, POLLIN, 0}, {stop_, POLLIN, 0}}};
    const int ready =
        ::poll(waits.data(), waits.size(), wait_ms(options_.deadline, options_.grace_s));
    if (ready < 0) continue;  // interrupted
    if (waits[1].revents != 0) return;
    if (ready == 0) end(0);
    signalfd_siginfo facts = {};
    if (::read(signals_, &facts, sizeof(facts)) == sizeof(facts)) {
      end(static_cast<int>(facts.ssi_signo));
    }
  }
}

void EarlyEnd::end(int signal) {
  // A further signal ends the program at once, even if its output waits for a reader.
  ::pthread_sigmask(SIG_SETMASK, &mask_before_, nullptr);
  int code = signal == 0 ? 0 : kOfSignals + signal;
  try {
    const int said = options_.last_words(signal);
    if (signal == 0) code = said;
    if (std::fflush(stdout) != 0) code = signal == 0 ? kExitCannotWrite : code;
    wait_for_nameless_files();
  } catch (const std::exception&) {
    code = signal == 0 ? kExitCannotWrite : code;
  }
  ::_exit(code);
}

void EarlyEnd::wait_for_nameless_files() const {
  constexpr int kTries = 100;
  for (int i = 0; i < kTries; ++i) {
    if (std::ranges::none_of(options_.directories, has_files_of_this_process)) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

}  // namespace terrace
