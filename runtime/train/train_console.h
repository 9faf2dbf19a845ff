#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

namespace terrace {

// A step that is done, as the console reports it.
struct StepProgress {
  std::string line;  // for the log; empty where --log-every skips the step
  std::int64_t step = 0;
  std::int64_t last_step = 0;
  double seconds_left = 0;  // until the last step is done
  double loss = 0;
  double tokens_per_s = 0;
};

// The console that the trainer reports to; the trainer writes files itself. Called on the caller's
// thread.
class TrainConsole {
 public:
  virtual ~TrainConsole() = default;
  virtual void say(const std::string& text) = 0;  // one or more whole lines
  virtual void step(const StepProgress& progress) = 0;
  // Says that something that can take minutes begins, such as "evaluating". No step is reported
  // until end_phase().
  virtual void begin_phase(const std::string& what) = 0;
  // Says which fraction of the phase is done, from 0 to 1. Never called in a phase whose length is
  // not known.
  virtual void advance_phase(double fraction) = 0;
  virtual void end_phase() = 0;
  // Says where the run writes its files, once run.json and metrics.jsonl are there.
  virtual void opened(const std::string& run_dir) = 0;
};

// The console of ranks that have nothing to say.
class SilentConsole final : public TrainConsole {
 public:
  void say(const std::string&) override {}
  void step(const StepProgress&) override {}
  void begin_phase(const std::string&) override {}
  void advance_phase(double) override {}
  void end_phase() override {}
  void opened(const std::string&) override {}
};

// A phase that can take minutes. It begins on the console when the object is constructed and ends
// with the object.
class ConsolePhase {
 public:
  // Borrows the console.
  ConsolePhase(TrainConsole& console, const std::string& what) : console_(console) {
    console_.begin_phase(what);
  }
  ~ConsolePhase() { console_.end_phase(); }
  ConsolePhase(const ConsolePhase&) = delete;
  ConsolePhase& operator=(const ConsolePhase&) = delete;

  // Reports that `done` of `total` parts are done; a part that was done twice may count twice.
  void advance(std::int64_t done, std::int64_t total) {
    console_.advance_phase(std::min(1.0, static_cast<double>(done) / static_cast<double>(total)));
  }

 private:
  TrainConsole& console_;
};

}  // namespace terrace
