#pragma once

#include "runtime/train/trainer.h"

namespace terrace {

// Trains with --local-ranks N ranks, each on a thread of this process with memory, lanes and drives
// of its own. The first has the console. When one fails the others are ended; what it threw is
// rethrown.
TrainOutcome train_local_ranks(const TrainCommand& command, StopRequest& stop,
                               TrainConsole& console, Log& log);

}  // namespace terrace
