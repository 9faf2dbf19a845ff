#include <fmt/format.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <memory>
#include <optional>
#include <string_view>

#include "base/error.h"
#include "parallel/launch_environment.h"
#include "parallel/mpi/mpi_session.h"
#include "runtime/cli/commands.h"
#include "runtime/cli/console_log.h"
#include "runtime/cli/failure.h"
#include "runtime/cli/progress_console.h"
#include "runtime/config/flag_reader.h"
#include "runtime/config/train_config.h"
#include "runtime/train/gpu_choice.h"
#include "runtime/train/gpu_world.h"
#include "runtime/train/train_setup.h"
#include "runtime/train/trainer.h"

namespace terrace {
namespace {

constexpr int kExitDone = 0;
constexpr int kExitSavedOnSignal = 75;

StopRequest stop;                       // what signal handlers can reach
std::atomic<bool> ends_at_once{false};  // where the run does not hear it yet

// Planning a step can take minutes, in which there is nothing to save.
void request_stop(int) {
  stop.is_made = true;
  if (stop.is_heard || !ends_at_once) return;
  constexpr std::string_view kText = "terrace: ended by a signal before the first step\n";
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, kText.data(), kText.size());
  _exit(kExitSavedOnSignal);
}

// SIGTERM and SIGUSR1 ask for a checkpoint and the end. Who reads the console may leave (SIGPIPE):
// hours of training do not end with a pager. Others keep their default. Ranks that are processes
// save together or not at all, so each waits for its steps.
void install_handlers(bool is_alone) {
  std::signal(SIGPIPE, SIG_IGN);
  ends_at_once = is_alone;
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

TrainOutcome train_as_rank(const TrainCommand& command, const LaunchEnvironment& launch,
                           Communicator& world, TrainConsole& console, Log& log) {
  SilentConsole silent;
  try {
    return train_rank(command, {&world, {launch.local_size, launch.local_rank}}, stop,
                      world.rank() == 0 ? console : silent, log);
  } catch (const std::exception& error) {
    // Said here too: if the other ranks do not come to the end of the session, nothing comes after.
    const std::string reason = fmt::format("rank {}: {}", world.rank(), error.what());
    log.warning(reason);
    world.abort(reason);
    throw;
  }
}

int exit_code_of(TrainOutcome outcome) {
  return outcome == TrainOutcome::kSavedOnSignal ? kExitSavedOnSignal : kExitDone;
}

// A rank of a job that mpirun started, which exits with the code of one of its processes,
// whichever: all have that of what failed.
int train_in_mpi_job(const TrainCommand& command, const LaunchEnvironment& launch,
                     const CommunicatorOptions& waiting, TrainConsole& console, Log& log) {
  MpiSession session;
  int code = kExitDone;
  int failure = 0;
  try {
    const std::unique_ptr<Communicator> world = session.make_world("world", waiting);
    code = exit_code_of(train_as_rank(command, launch, *world, console, log));
  } catch (const std::exception& error) {
    failure = report_failure(error);
  }
  failure = session.end(failure);
  return failure != 0 ? failure : code;
}

// A rank of a job that a launcher started.
int train_in_job(const TrainCommand& command, const LaunchEnvironment& launch,
                 TrainConsole& console, Log& log) {
  const DeviceChoice& device = command.options.tiers.device;
  const CommunicatorOptions waiting = communicator_options_for(command.options.ranks);
  prepare_for_ranks(device);
  if (launch.is_mpi_job) return train_in_mpi_job(command, launch, waiting, console, log);
  GpuWorld world(launch, device, waiting);
  return exit_code_of(train_as_rank(command, launch, world.ranks(), console, log));
}

// Ranks that are threads have a checkpoint's files open each.
void allow_as_many_files_as_can_be() {
  rlimit files{};
  if (getrlimit(RLIMIT_NOFILE, &files) != 0) return;
  files.rlim_cur = files.rlim_max;
  setrlimit(RLIMIT_NOFILE, &files);  // with less it may work as well
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
  const std::int32_t local_ranks = command.options.ranks.local_ranks;
  const LaunchEnvironment launch = detect_launch(
      environment_variables(), local_ranks > 1 ? std::optional<int>(local_ranks) : std::nullopt);
  const bool is_job = launch.source != LaunchSource::kLocalRanks && launch.size > 1;
  if (!command.options.run.dry_run) install_handlers(!is_job);

  allow_as_many_files_as_can_be();

  ConsoleLog log;
  if (!launch.doubt.empty() && launch.rank == 0) log.warning(launch.doubt);
  // mpirun makes a terminal for its ranks, whatever it writes to itself.
  const bool is_terminal = !launch.is_mpi_job && isatty(STDOUT_FILENO) == 1;
  ProgressConsole console(stdout, is_terminal, command.options.run.progress);
  if (is_job) return train_in_job(command, launch, console, log);
  return exit_code_of(train(command, stop, console, log));
}

}  // namespace terrace
