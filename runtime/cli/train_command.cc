#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>

#include "base/error.h"
#include "runtime/cli/commands.h"
#include "runtime/cli/console_log.h"
#include "runtime/cli/progress_console.h"
#include "runtime/config/flag_reader.h"
#include "runtime/config/train_config.h"
#include "runtime/train/trainer.h"

namespace terrace {
namespace {

constexpr int kExitDone = 0;
constexpr int kExitSavedOnSignal = 75;

// The one thing that a signal handler can reach.
std::atomic<bool> stop_requested = false;
static_assert(std::atomic<bool>::is_always_lock_free);

void request_stop(int) { stop_requested = true; }

// SIGTERM and SIGUSR1 ask for a checkpoint and the end; others keep their default.
void install_handlers() {
  struct sigaction action = {};
  action.sa_handler = request_stop;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  for (const int number : {SIGTERM, SIGUSR1}) {
    if (sigaction(number, &action, nullptr) != 0) {
      throw IoError({.operation = "sigaction", .path = "signal", .error_number = errno});
    }
  }
}

void refuse_launcher() {
  const int ranks = launcher_ranks([](const char* name) { return std::getenv(name); });
  if (ranks == 1) return;
  throw ConfigError(
      fmt::format("the launcher started {} ranks: more than one rank is not built yet", ranks),
      "start one process without the launcher");
}

}  // namespace

int run_train(int argc, const char* const* argv) {
  const std::vector<std::string> arguments(argv + 2, argv + argc);
  if (wants_help(arguments)) {
    fmt::print("{}", train_help());
    return kExitDone;
  }
  TrainCommand command;
  command.options = parse_train_options(arguments);
  command.command_line.assign(argv, argv + argc);
  command.effective_config = to_toml(command.options);
  refuse_launcher();
  install_handlers();

  ConsoleLog log;
  ProgressConsole console(stdout, isatty(STDOUT_FILENO) == 1, command.options.run.progress);
  switch (train(command, stop_requested, console, log)) {
    case TrainOutcome::kDone:
    case TrainOutcome::kStoppedAsAsked:
      return kExitDone;
    case TrainOutcome::kSavedOnSignal:
      return kExitSavedOnSignal;
  }
  return kExitDone;
}

}  // namespace terrace
