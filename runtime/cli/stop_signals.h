#pragma once

#include "runtime/train/stop_request.h"

namespace terrace {

// Makes the signals that end a training ask it to save first: SIGTERM, SIGUSR1, SIGHUP and the
// first SIGINT. A second SIGINT ends the program by itself, unless it comes within 0.3 s of the
// first: then it is the same one, which a launcher has passed on. A signal that was ignored when
// the program started stays ignored, as nohup and a shell's background jobs want. Returns where the
// handlers leave the request; it lives as long as the program. Call once, from the main thread,
// before other threads start. Throws IoError.
//
// `is_alone`: the run is this process. Before its first step, while there is nothing to save, a
// signal then ends it at once with kExitSavedOnSignal. Ranks that are processes save together or
// not at all, so each waits for its steps.
StopRequest& install_stop_signals(bool is_alone);

constexpr int kExitSavedOnSignal = 75;

}  // namespace terrace
