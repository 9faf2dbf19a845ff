#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/log.h"
#include "runtime/train/first_steps.h"
#include "runtime/train/metrics_file.h"
#include "runtime/train/train_console.h"
#include "runtime/train/train_report.h"

namespace terrace {

// The rows of a run's steps, on their way to metrics.jsonl and the console. A step's row waits
// until the next step has started, where its time ends, or is flushed. Used by one thread.
class StepRows {
 public:
  struct Run {
    std::int64_t done_steps = 0;   // before it
    std::int64_t last_step = 0;    // where it ends
    std::int64_t total_steps = 0;  // of the schedule
    std::int64_t log_every = 1;
    int ranks = 1;
    // Of a step of all ranks, over what they could do together in a second; 0: not known.
    double seconds_at_stated_speed = 0;
    PlannedStep planned = {};
  };

  // The run's time starts here. Borrows the console.
  StepRows(const Run& run, TrainConsole& console);

  // For the first rank, which writes the file, behind the rows up to `kept_step`. Throws IoError,
  // as what writes to it does.
  void open_file(const std::string& run_dir, std::int64_t kept_step, const Ledger& ledger);
  // What was written survives a power cut.
  void sync();

  // A step is done, and with its start the row of the step before it, which also gets the bytes
  // that were moved for that one.
  void add(StepMetrics metrics);
  // Of the row that is not flushed yet: what completed the step after it had ended.
  void add_drained(const RunTotals& drained);
  void set_validation(const std::vector<ValidationLoss>& losses);
  // Likewise of a row that is in the file since the run before this one.
  void add_to_last_row(const std::vector<ValidationLoss>& losses);
  // Its step ended at `until_ns`; nothing where there is no row.
  void flush(std::int64_t until_ns);
  // Likewise, in a run that ends by something else: a problem of the file is a warning.
  void flush_of_failed_run(std::int64_t until_ns, Log& log);
  // Says what the first steps took beside what was planned, and writes it into run.json; once,
  // after as many of them as FirstSteps wants, or at the end of a shorter run.
  void tell_first_steps();

  // The steps of --checkpoint-every auto, as choose_save_interval() has them.
  std::optional<std::int64_t> save_interval() const;

  // Of the whole run, for its end.
  std::string summary(const StepWaits& waits) const { return summary_.text(waits, run_.ranks); }

 private:
  void say(const StepMetrics& row);

  Run run_;
  TrainConsole& console_;
  SystemClock clock_;
  std::int64_t started_ns_;
  std::optional<MetricsFile> file_;
  std::optional<StepMetrics> row_;  // finished, its time not yet known
  TimeSummary summary_;
  std::string run_dir_;  // of the first rank
  FirstSteps first_steps_;
  bool has_told_first_steps_ = false;
};

}  // namespace terrace
