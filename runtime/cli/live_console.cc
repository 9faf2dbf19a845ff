#include "runtime/cli/live_console.h"

#include <fmt/format.h>

namespace terrace {

LiveConsole::LiveConsole(TrainConsole& console, int port)
    : console_(console),
      report_(port, {.page = [this] { return run_.page(); },
                     .metrics = [this] { return run_.metrics(); }}) {
  console_.say(fmt::format("report of this run, on this machine only: http://127.0.0.1:{}/",
                           report_.port()));
}

void LiveConsole::opened(const std::string& run_dir) {
  console_.opened(run_dir);
  run_.set_directory(run_dir);
}

}  // namespace terrace
