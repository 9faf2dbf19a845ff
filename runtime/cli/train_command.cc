#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdio>
#include <memory>
#include <optional>

#include "base/error.h"
#include "base/failure_text.h"
#include "parallel/launch_environment.h"
#include "parallel/mpi/mpi_session.h"
#include "parallel/sockets/socket_session.h"
#include "runtime/cli/commands.h"
#include "runtime/cli/console_log.h"
#include "runtime/cli/console_writer.h"
#include "runtime/cli/failure.h"
#include "runtime/cli/live_console.h"
#include "runtime/cli/progress_console.h"
#include "runtime/cli/standard_output.h"
#include "runtime/cli/stop_signals.h"
#include "runtime/config/flag_reader.h"
#include "runtime/config/train_config.h"
#include "runtime/model/model_directory.h"
#include "runtime/train/gpu_choice.h"
#include "runtime/train/gpu_world.h"
#include "runtime/train/train_setup.h"
#include "runtime/train/trainer.h"

namespace terrace {
namespace {

constexpr int kExitDone = 0;

// The training that a command runs, with its connections to the outside: the stop request, the
// console and the log.
struct Training {
  const TrainCommand& command;
  StopRequest& stop;
  TrainConsole& console;
  ConsoleLog& log;
};

TrainOutcome train_as_rank(const Training& training, const LaunchEnvironment& launch,
                           Communicator& world) {
  SilentConsole silent;
  try {
    return train_rank(training.command, {&world, {launch.local_size, launch.local_rank}},
                      training.stop, world.rank() == 0 ? training.console : silent, training.log);
  } catch (const std::exception& error) {
    // Reported here too: if the other ranks never reach the end of the session, nothing is printed
    // later.
    const std::string reason = fmt::format("rank {}: {}", world.rank(), failure_text(error));
    training.log.warning(reason);
    world.abort(reason);
    throw;
  }
}

int exit_code_of(TrainOutcome outcome) {
  return outcome == TrainOutcome::kSavedOnSignal ? kExitSavedOnSignal : kExitDone;
}

// Runs a rank of a session with the others. mpirun and torchrun exit with the code of any one of
// their processes, so all ranks return the code of the failure.
template <typename Session, typename MakeWorld>
int train_in_session(const Training& training, const LaunchEnvironment& launch, Session& session,
                     MakeWorld make_world) {
  int code = kExitDone;
  int failure = 0;
  try {
    const std::unique_ptr<Communicator> world = make_world();
    code = exit_code_of(train_as_rank(training, launch, *world));
  } catch (const std::exception& error) {
    failure = report_failure(error, "terrace train", training.log.sink());
  }
  failure = session.end(failure);
  return failure != 0 ? failure : code;
}

int train_in_mpi_job(const Training& training, const LaunchEnvironment& launch,
                     const CommunicatorOptions& waiting) {
  MpiSession session;
  return train_in_session(training, launch, session, [&] {
    check_mpi_world(launch, {session.rank(), session.size(), MpiSession::library()});
    return session.make_world("world", waiting);
  });
}

int train_over_sockets(const Training& training, const LaunchEnvironment& launch,
                       const CommunicatorOptions& waiting) {
  SocketSetting setting = socket_setting(launch);
  setting.limit_time(waiting.timeout);
  SocketSession session(setting);
  return train_in_session(training, launch, session,
                          [&] { return session.make_world("world", waiting); });
}

// Runs a rank of a job that a launcher started. Several ranks compute on GPUs only if these are
// named (takes_gpus).
int train_in_job(const Training& training, const LaunchEnvironment& launch) {
  const TrainOptions& options = training.command.options;
  const DeviceChoice& device = options.tiers.device;
  const CommunicatorOptions waiting = communicator_options_for(options.ranks);
  prepare_for_ranks(device);
  if (launch.is_mpi_job && is_mpi_built()) return train_in_mpi_job(training, launch, waiting);
  if (device.kind != DeviceKind::kCuda) return train_over_sockets(training, launch, waiting);
  GpuWorld world(launch, device, waiting);
  return exit_code_of(train_as_rank(training, launch, world.ranks()));
}

// Raises the limit on open files: each rank that is a thread opens the checkpoint's files for
// itself.
void allow_as_many_files_as_can_be() {
  rlimit files{};
  if (getrlimit(RLIMIT_NOFILE, &files) != 0) return;
  files.rlim_cur = files.rlim_max;
  setrlimit(RLIMIT_NOFILE, &files);  // a failure is ignored: fewer files may do
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
  std::string& model = command.options.model.model;
  model = directory_of_model(model);
  command.command_line.assign(argv, argv + argc);
  const std::int32_t local_ranks = command.options.ranks.local_ranks;
  const LaunchEnvironment launch = detect_launch(
      environment_variables(), local_ranks > 1 ? std::optional<int>(local_ranks) : std::nullopt);
  settle_batch(command.options, launch.size);
  const bool is_job = launch.source != LaunchSource::kLocalRanks && launch.size > 1;
  StopRequest nobody_asks;  // a dry run has nothing to save
  StopRequest& stop = command.options.run.dry_run ? nobody_asks : install_stop_signals(!is_job);

  allow_as_many_files_as_can_be();

  // Printing is all that a dry run does, so it waits for its reader.
  std::optional<ConsoleStreams> streams;
  if (!command.options.run.dry_run) streams.emplace();
  const ErrorSink errors = streams ? streams->error_sink() : ErrorSink(write_to_standard_error);
  // mpirun gives its ranks a terminal, whatever its own output goes to.
  const bool is_terminal = !launch.is_mpi_job && erases_lines(STDOUT_FILENO);
  ProgressConsole console(streams ? streams->output() : stdout,
                          {.is_terminal = is_terminal,
                           .choice = command.options.run.progress,
                           .has_colours = is_terminal && takes_colours(STDOUT_FILENO)});
  ConsoleLog log([&](std::string_view text) { console.above_progress([&] { errors(text); }); });
  if (!launch.doubt.empty() && launch.rank == 0) log.warning(launch.doubt);
  const std::optional<int>& live_port = command.options.run.live_port;
  std::optional<LiveConsole> live;
  if (live_port && command.options.run.dry_run) {
    throw ConfigError("--live: a dry run has no run to show", "leave --live out");
  }
  if (live_port && launch.rank == 0) live.emplace(console, *live_port);
  TrainConsole& shown = live ? static_cast<TrainConsole&>(*live) : console;
  const Training training = {command, stop, shown, log};
  if (is_job) return train_in_job(training, launch);
  return exit_code_of(train(command, stop, shown, log));
}

}  // namespace terrace
