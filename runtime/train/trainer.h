#pragma once

#include <string>
#include <vector>

#include "base/log.h"
#include "memory/host/thread_plan.h"
#include "parallel/communicator.h"
#include "runtime/config/train_options.h"
#include "runtime/train/stop_request.h"
#include "runtime/train/train_console.h"

namespace terrace {

enum class TrainOutcome : std::uint8_t { kDone, kStoppedAsAsked, kSavedOnSignal };

struct TrainCommand {
  TrainOptions options;
  std::vector<std::string> command_line;  // for run.json
};

// `terrace train`: reads data and model, compiles and verifies the step, says the ledger, trains,
// evaluates, saves. Polls `stop`. Throws the errors of
// base/error.h. With --local-ranks it does so on a thread per rank.
TrainOutcome train(const TrainCommand& command, StopRequest& stop, TrainConsole& console, Log& log);

class SharedPlans;

// Which ranks there are, as one of them sees them.
struct LaunchedRanks {
  Communicator* world = nullptr;  // all; null where there is one
  RanksOnHost on_host;            // those that share memory and processors with this one
  SharedPlans* plans = nullptr;   // of ranks that are threads of one process
  // Data-parallel ranks have parts of one size, so a dry run plans the first at each place of the
  // mesh alone: `world` has only those, and each stands for so many. Else 1.
  std::int32_t stands_for = 1;
  std::int32_t count() const { return world == nullptr ? 1 : stands_for * world->size(); }
};

// One rank of it. All call it with equal commands; the first writes the files. A rank that throws
// leaves it to the caller to abort the communicator; where ranks are threads and a checkpoint is
// being written it does so itself, before it waits for that.
TrainOutcome train_rank(const TrainCommand& command, const LaunchedRanks& ranks, StopRequest& stop,
                        TrainConsole& console, Log& log);

}  // namespace terrace
