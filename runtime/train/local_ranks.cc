#include <fmt/format.h>

#include <exception>
#include <memory>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/failure_text.h"
#include "parallel/thread_communicator.h"
#include "runtime/plan/shared_plans.h"
#include "runtime/train/gpu_choice.h"
#include "runtime/train/train_setup.h"
#include "runtime/train/trainer.h"

namespace terrace {
namespace {

struct Rank {
  std::unique_ptr<Communicator> world;
  SharedPlans* plans = nullptr;  // of all ranks
  RanksOnHost on_host;
  std::int32_t stands_for = 1;  // see LaunchedRanks
  TrainOutcome outcome = TrainOutcome::kDone;
  std::exception_ptr error;
};

// Returns all ranks, or, for a dry run, the first data-parallel rank at each place of the mesh.
std::vector<Rank> make_ranks(const TrainOptions& options, SharedPlans& plans) {
  const std::int32_t count = options.ranks.local_ranks;
  MeshShape present = mesh_for(options, count, count);
  const MeshShape shape = present;
  if (options.run.dry_run) present.data = 1;
  std::vector<Rank> ranks(static_cast<std::size_t>(present.ranks()));
  auto world =
      make_thread_communicators(present.ranks(), "world", communicator_options_for(options.ranks));
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    ranks[r].world = std::move(world[r]);
    ranks[r].plans = &plans;
    ranks[r].on_host = {count, rank_of(shape, position_of(present, static_cast<int>(r)))};
    ranks[r].stands_for = shape.data / present.data;
  }
  return ranks;
}

void check_rank_count(const TrainOptions& options) {
  constexpr std::int32_t kThreadsMax = 256;
  if (options.run.dry_run || options.ranks.local_ranks <= kThreadsMax) return;
  throw ConfigError(
      fmt::format("--local-ranks {}: at most {} ranks run as threads of one process",
                  options.ranks.local_ranks, kThreadsMax),
      "lower --local-ranks, start the ranks with a launcher, or plan them with --dry-run");
}

void run_rank(const TrainCommand& command, Rank& rank, StopRequest& stop, TrainConsole& console,
              Log& log) {
  try {
    const LaunchedRanks launched{rank.world.get(), rank.on_host, rank.plans, rank.stands_for};
    rank.outcome = train_rank(command, launched, stop, console, log);
  } catch (const std::exception& error) {
    rank.error = std::current_exception();
    rank.world->abort(failure_text(error));
  } catch (...) {
    rank.error = std::current_exception();
    rank.world->abort("an unknown error");
  }
}

bool is_of_another_rank(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const CommError&) {
    return true;
  } catch (...) {
    return false;
  }
}

// Rethrows the error of the first rank that failed by itself; if there is none, the error of some
// rank.
void rethrow_cause(const std::vector<Rank>& ranks) {
  std::exception_ptr any;
  for (const Rank& rank : ranks) {
    if (rank.error == nullptr) continue;
    if (!is_of_another_rank(rank.error)) std::rethrow_exception(rank.error);
    any = rank.error;
  }
  if (any != nullptr) std::rethrow_exception(any);
}

// Trains with --local-ranks N ranks, each on a thread of this process with memory, lanes and drives
// of its own. The first rank has the console. When one fails, the others are ended, and its error
// is rethrown.
TrainOutcome train_local_ranks(const TrainCommand& command, StopRequest& stop,
                               TrainConsole& console, Log& log) {
  check_rank_count(command.options);
  prepare_for_ranks(command.options.tiers.device);
  SharedPlans plans;
  std::vector<Rank> ranks = make_ranks(command.options, plans);
  SilentConsole silent;
  {
    std::vector<std::jthread> threads;
    try {
      for (std::size_t r = 1; r < ranks.size(); ++r) {
        threads.emplace_back([&, r] { run_rank(command, ranks[r], stop, silent, log); });
      }
    } catch (const std::system_error& error) {
      ranks[0].world->abort("a rank's thread cannot be started");
      throw EnvironmentError(fmt::format("cannot start a thread for each of {} local ranks: {}",
                                         ranks.size(), error.what()),
                             "lower --local-ranks, or raise the limit on processes (ulimit -u)");
    }
    run_rank(command, ranks[0], stop, console, log);
  }
  rethrow_cause(ranks);
  return ranks[0].outcome;
}

}  // namespace

TrainOutcome train(const TrainCommand& command, StopRequest& stop, TrainConsole& console,
                   Log& log) {
  if (command.options.ranks.local_ranks == 1) {
    return train_rank(command, {}, stop, console, log);
  }
  return train_local_ranks(command, stop, console, log);
}

}  // namespace terrace
