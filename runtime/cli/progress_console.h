#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <mutex>
#include <string>
#include <thread>

#include "base/function_ref.h"
#include "runtime/config/train_options.h"
#include "runtime/train/train_console.h"

namespace terrace {

// "45 s", "3 min 20 s", "2 h 05 min", "4 d 03 h".
std::string duration_text(double seconds);

// When a console tells of a phase, such as the planning of a step.
struct PhasePace {
  std::chrono::milliseconds first = std::chrono::seconds(2);  // not at all before
  std::chrono::milliseconds tick = std::chrono::seconds(1);   // on a terminal, again and again
};

struct ConsoleOptions {
  bool is_terminal = false;
  ProgressChoice choice = ProgressChoice::kAuto;
  int columns = 0;  // of the terminal; 0: as standard output says, whenever a line is drawn
  PhasePace pace = {};
};

// Where training prints: lines, and on a terminal one line of progress below them, which fits the
// terminal's width and is gone at the end. Carriage returns and escapes are written to a terminal
// only; a progress that was asked for without one comes as whole lines. Thread-safe.
class ProgressConsole final : public TrainConsole {
 public:
  // Borrows `out`.
  ProgressConsole(std::FILE* out, const ConsoleOptions& options);
  ~ProgressConsole() override;
  ProgressConsole(const ProgressConsole&) = delete;
  ProgressConsole& operator=(const ProgressConsole&) = delete;

  void say(const std::string& text) override;
  void step(const StepProgress& progress) override;
  // On a terminal a line with the time that has passed, and where advance_phase() is called with
  // the part that is done and the time that is left; elsewhere one line. A thread of the console's
  // own writes it.
  void begin_phase(const std::string& what) override;
  void advance_phase(double fraction) override;
  void end_phase() override;

  // Runs `write`, which prints whole lines by other means, with the line of progress out of the
  // way.
  void above_progress(FunctionRef<void()> write);

 private:
  void tell_phase(const std::stop_token& ended, const std::string& what);
  // All below need mutex_.
  void erase();
  void draw();
  void print_line(const std::string& text);
  void show(std::string progress_line);
  int columns() const;
  void say_progress(const StepProgress& progress);
  // `told_part`: the twentieth of the phase that was told last, of lines.
  void say_phase(const std::string& text, double fraction, std::int64_t& told_part);

  std::FILE* const out_;
  const ConsoleOptions options_;
  const bool bar_;    // drawn in place
  const bool lines_;  // progress as lines

  std::atomic<double> fraction_{-1};  // of the phase; negative: not known
  std::mutex mutex_;
  // Guarded by mutex_.
  std::string drawn_;            // the line of progress; empty: none
  std::int64_t last_part_ = -1;  // of lines: the twentieth of the run that was told last

  std::jthread phase_;
};

}  // namespace terrace
