#pragma once

#include <cstdio>
#include <string>

#include "runtime/config/train_options.h"
#include "runtime/train/trainer.h"

namespace terrace {

// "45 s", "3 min 20 s", "2 h 05 min", "4 d 03 h".
std::string duration_text(double seconds);

// Where training prints: lines, and on a terminal a progress bar below them. Carriage returns and
// escapes are written to a terminal only; a progress that was asked for without one comes as whole
// lines.
class ProgressConsole final : public TrainConsole {
 public:
  // Borrows `out`.
  ProgressConsole(std::FILE* out, bool is_terminal, ProgressChoice choice);
  // Leaves the bar as it last was, on a line of its own.
  ~ProgressConsole() override;
  ProgressConsole(const ProgressConsole&) = delete;
  ProgressConsole& operator=(const ProgressConsole&) = delete;

  void say(const std::string& text) override;
  void step(const std::string& line, std::int64_t step, std::int64_t last_step,
            double seconds_left) override;

 private:
  void erase_bar();
  void draw_bar();
  void print_line(const std::string& text);
  void say_progress(std::int64_t step, std::int64_t last_step, double seconds_left);

  std::FILE* const out_;
  const bool bar_;    // drawn in place
  const bool lines_;  // progress as lines

  std::string bar_text_;         // empty before the first step
  std::int64_t last_part_ = -1;  // of lines: the twentieth of the run that was told last
};

}  // namespace terrace
