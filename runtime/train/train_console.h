#pragma once

#include <cstdint>
#include <string>

namespace terrace {

// What the trainer tells the console; files it writes by itself. Called on the caller's thread.
class TrainConsole {
 public:
  virtual ~TrainConsole() = default;
  virtual void say(const std::string& text) = 0;  // one or more whole lines
  // Between these two calls a step is planned, which can take a minute; nothing is said until the
  // end.
  virtual void begin_planning() = 0;
  virtual void end_planning() = 0;
  // A step is done: `line` is for the log (empty where --log-every skips it), the rest for a
  // progress bar.
  virtual void step(const std::string& line, std::int64_t step, std::int64_t last_step,
                    double seconds_left) = 0;
};

// For ranks that have nothing to say.
class SilentConsole final : public TrainConsole {
 public:
  void say(const std::string&) override {}
  void begin_planning() override {}
  void end_planning() override {}
  void step(const std::string&, std::int64_t, std::int64_t, double) override {}
};

// The time in which a step is planned, as the console is told of it.
class PlanningPhase {
 public:
  // Borrows the console.
  explicit PlanningPhase(TrainConsole& console) : console_(console) { console_.begin_planning(); }
  ~PlanningPhase() { console_.end_planning(); }
  PlanningPhase(const PlanningPhase&) = delete;
  PlanningPhase& operator=(const PlanningPhase&) = delete;

 private:
  TrainConsole& console_;
};

}  // namespace terrace
