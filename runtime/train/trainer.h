#pragma once

#include <cstdint>
#include <optional>
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
  // Save and stop after this step; the caller goes on (runtime/train/stage_cut.h).
  std::optional<std::int64_t> cut_after_step = {};

  // Returns the step that this part of the run ends with.
  std::int64_t last_step(std::int64_t total_steps) const;
};

// Runs `terrace train`: reads data and model, compiles and verifies the step, prints the ledger,
// trains, evaluates and saves. Polls `stop`. Throws the errors of base/error.h. With --local-ranks
// it does this on one thread per rank.
TrainOutcome train(const TrainCommand& command, StopRequest& stop, TrainConsole& console, Log& log);

class SharedPlans;

// The ranks of a run, as one of them sees them.
struct LaunchedRanks {
  Communicator* world = nullptr;  // all ranks; null where there is one
  RanksOnHost on_host;            // the ranks on this one's host, sharing its memory
  SharedPlans* plans = nullptr;   // for ranks that are threads of one process
  // The number of ranks that each rank in `world` stands for. Data-parallel ranks have parts of
  // equal size, so a dry run plans only the first one at each place of the mesh: `world` has only
  // these ranks. 1 in other runs.
  std::int32_t stands_for = 1;
  std::int32_t count() const { return world == nullptr ? 1 : stands_for * world->size(); }
};

// Runs one rank of train(). All ranks call it with equal commands; the first rank writes the files.
// A rank that throws leaves it to the caller to abort the communicator. If ranks are threads and a
// checkpoint is being written, the rank aborts the communicator itself, before it waits for the
// checkpoint.
TrainOutcome train_rank(const TrainCommand& command, const LaunchedRanks& ranks, StopRequest& stop,
                        TrainConsole& console, Log& log);

}  // namespace terrace
