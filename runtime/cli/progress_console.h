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

// Formats a duration: "45 s", "3 min 20 s", "2 h 05 min", "4 d 03 h".
std::string duration_text(double seconds);

// The times at which a console reports on a phase, such as the planning of a step.
struct PhasePace {
  std::chrono::milliseconds first = std::chrono::seconds(2);  // no report before this
  std::chrono::milliseconds tick = std::chrono::seconds(1);   // the interval on a terminal
};

struct ConsoleOptions {
  bool is_terminal = false;  // one that can erase a line
  ProgressChoice choice = ProgressChoice::kAuto;
  int columns = 0;  // of the terminal; 0: ask standard output for each line
  PhasePace pace = {};
  bool has_colours = false;  // the bar is coloured
};

// The console that training prints to: lines and, on a terminal, one line of progress below them,
// which fits the terminal's width and is removed at the end. Carriage returns and escapes are
// written to a terminal only; if progress was asked for without a terminal, it is printed as whole
// lines. Thread-safe.
class ProgressConsole final : public TrainConsole {
 public:
  // Borrows `out`.
  ProgressConsole(std::FILE* out, const ConsoleOptions& options);
  ~ProgressConsole() override;
  ProgressConsole(const ProgressConsole&) = delete;
  ProgressConsole& operator=(const ProgressConsole&) = delete;

  void say(const std::string& text) override;
  void step(const StepProgress& progress) override;
  // On a terminal, shows a line with the elapsed time and, once advance_phase() is called, the part
  // that is done and the time left; elsewhere prints one line. A thread of the console writes it.
  void begin_phase(const std::string& what) override;
  void advance_phase(double fraction) override;
  void end_phase() override;
  void opened(const std::string& /*run_dir*/) override {}

  // Removes the line of progress while it runs `write`, which prints whole lines by other means.
  void above_progress(FunctionRef<void()> write);

 private:
  void tell_phase(const std::stop_token& ended, const std::string& what);
  // The caller holds mutex_ for all methods below.
  void erase();
  void draw();
  void print_line(const std::string& text);
  void show(std::string progress_line);
  int columns() const;
  void say_progress(const StepProgress& progress);
  // `told_part`: when progress is printed as lines, the twentieth of the phase that was printed
  // last.
  void say_phase(const std::string& text, double fraction, std::int64_t& told_part);

  std::FILE* const out_;
  const ConsoleOptions options_;
  const bool bar_;    // progress is drawn in place
  const bool lines_;  // progress is printed as lines

  std::atomic<double> fraction_{-1};  // the done part of the phase; negative: not known
  std::mutex mutex_;
  // Guarded by mutex_.
  std::string drawn_;            // the line of progress; empty: none
  std::int64_t last_part_ = -1;  // with lines: the twentieth of the run printed last

  std::jthread phase_;
};

}  // namespace terrace
