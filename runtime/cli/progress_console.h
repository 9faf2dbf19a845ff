#pragma once

#include <chrono>
#include <cstdio>
#include <string>
#include <thread>

#include "runtime/config/train_options.h"
#include "runtime/train/trainer.h"

namespace terrace {

// "45 s", "3 min 20 s", "2 h 05 min", "4 d 03 h".
std::string duration_text(double seconds);

// When a console tells that a step is being planned.
struct PlanningPace {
  std::chrono::milliseconds first = std::chrono::seconds(2);  // not at all before
  std::chrono::milliseconds tick = std::chrono::seconds(1);   // on a terminal, again and again
};

// Where training prints: lines, and on a terminal a progress bar below them. Carriage returns and
// escapes are written to a terminal only; a progress that was asked for without one comes as whole
// lines.
class ProgressConsole final : public TrainConsole {
 public:
  // Borrows `out`.
  ProgressConsole(std::FILE* out, bool is_terminal, ProgressChoice choice,
                  PlanningPace pace = PlanningPace());
  // Leaves the bar as it last was, on a line of its own.
  ~ProgressConsole() override;
  ProgressConsole(const ProgressConsole&) = delete;
  ProgressConsole& operator=(const ProgressConsole&) = delete;

  void say(const std::string& text) override;
  // On a terminal a line with the seconds that have passed, which is gone at the end; elsewhere one
  // line that stays. A thread of the console's own writes it.
  void begin_planning() override;
  void end_planning() override;
  void step(const std::string& line, std::int64_t step, std::int64_t last_step,
            double seconds_left) override;

 private:
  void tell_planning(const std::stop_token& ended);
  void erase_bar();
  void draw_bar();
  void print_line(const std::string& text);
  void say_progress(std::int64_t step, std::int64_t last_step, double seconds_left);

  std::FILE* const out_;
  const bool bar_;    // drawn in place
  const bool lines_;  // progress as lines
  const bool tells_planning_;
  const PlanningPace pace_;

  std::string bar_text_;         // empty before the first step
  std::int64_t last_part_ = -1;  // of lines: the twentieth of the run that was told last
  std::jthread planning_;        // owns out_ while it runs
};

}  // namespace terrace
