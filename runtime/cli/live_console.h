#pragma once

#include <string>

#include "runtime/report/live_report.h"
#include "runtime/train/train_console.h"

namespace terrace {

// A console that also serves the report of the run, from its construction to its destruction. The
// page shows the run once the run has a directory.
class LiveConsole final : public TrainConsole {
 public:
  // Borrows the console, and says the page's address on it. Throws as LiveReport does.
  LiveConsole(TrainConsole& console, int port);

  void say(const std::string& text) override { console_.say(text); }
  void step(const StepProgress& progress) override { console_.step(progress); }
  void begin_phase(const std::string& what) override { console_.begin_phase(what); }
  void advance_phase(double fraction) override { console_.advance_phase(fraction); }
  void end_phase() override { console_.end_phase(); }
  void opened(const std::string& run_dir) override;

 private:
  TrainConsole& console_;
  report::LiveRun run_;
  report::LiveReport report_;
};

}  // namespace terrace
