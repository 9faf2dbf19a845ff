#pragma once

#include "runtime/train/stop_request.h"

namespace terrace {

// Makes the signals that end a training ask it to save first: SIGTERM, SIGUSR1, SIGHUP and the
// first SIGINT. A second SIGINT ends the program in its default way, unless it comes within 0.3 s
// of the first: then it is the same one, passed on by a launcher. A signal that was ignored when
// the program started stays ignored, as nohup and a shell's background jobs need it. Returns the
// object in which the handlers leave the request; it lives as long as the program. Call once, from
// the main thread, before other threads start. Throws IoError.
//
// `is_alone`: this process is the whole run. Before the first step, while there is nothing to save,
// a signal then ends the program at once with kExitSavedOnSignal. Ranks that are processes save
// together or not at all, so each waits until its steps begin.
StopRequest& install_stop_signals(bool is_alone);

constexpr int kExitSavedOnSignal = 75;

}  // namespace terrace
