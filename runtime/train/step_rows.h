#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/log.h"
#include "runtime/train/first_steps.h"
#include "runtime/train/loss_curve.h"
#include "runtime/train/metrics_file.h"
#include "runtime/train/step_energy.h"
#include "runtime/train/train_console.h"
#include "runtime/train/train_report.h"

namespace terrace {

// The rows of a run's steps, on their way to metrics.jsonl and the console. A step's row waits
// until the next step has started, which ends the row's time, or until it is flushed. Used by one
// thread.
class StepRows {
 public:
  struct Run {
    std::int64_t done_steps = 0;   // before it
    std::int64_t last_step = 0;    // where it ends
    std::int64_t total_steps = 0;  // of the schedule
    std::int64_t log_every = 1;
    int ranks = 1;
    std::string trial = {};  // the command that tries the model in final/
    // The time of a token at the stated speed of all ranks' GPUs; 0: not known.
    double token_s_at_stated_speed = 0;
    PlannedStep planned = {};
    std::string energy = {};  // what StepEnergy::describe() says
    double largest_step = 1;  // how many times as long as the first steps the largest one takes
  };

  // The run's time starts here. Borrows the console.
  StepRows(const Run& run, TrainConsole& console);

  // Opens metrics.jsonl, to append after the rows up to `kept_step`, and says whether energy is
  // measured. For the first rank, which writes the file. Throws IoError, as do the methods that
  // write to it.
  void open_file(const std::string& run_dir, std::int64_t kept_step, const Ledger& ledger);
  // Makes all rows written so far survive a power cut.
  void sync();

  // Adds the row of a step that is done. The start of that step completes the row of the step
  // before it, which also gets the bytes that were moved for it later.
  void add(StepMetrics metrics);
  // Adds to the row that is not flushed yet the totals of the drain that completed its step.
  void add_drained(const RunTotals& drained);
  void set_validation(const std::vector<ValidationLoss>& losses);
  // Adds the losses to the last row of the file, which the run before this one wrote.
  void add_to_last_row(const std::vector<ValidationLoss>& losses);
  // Writes the row that is not flushed yet, whose step ended at `until_ns`. Does nothing where
  // there is no row.
  void flush(std::int64_t until_ns);
  // Does the same in a run that ends by another failure: a problem with the file is only a warning.
  void flush_of_failed_run(std::int64_t until_ns, Log& log);
  // Prints the time and memory that the first steps took next to the plan, and writes them into
  // run.json. Does so once, after as many steps as FirstSteps wants, or at the end of a shorter
  // run.
  void tell_first_steps();
  // Writes into run.json what the compute lane waited for, and the energy of the steps. Does
  // nothing without a file.
  void record_waits_and_energy(const StepWaits& waits);

  // Returns the number of steps for --checkpoint-every auto, as choose_save_interval() chooses it.
  std::optional<std::int64_t> save_interval() const;

  // Returns the summary of the whole run, for its end.
  std::string summary(const StepWaits& waits) const;
  // Returns lines for the end of a run: `best`, if it is not empty; how the loss went, as bars too
  // in a locale with UTF-8; which command tries the model, if there is one in final/; and where the
  // curves are. A line break precedes each. Empty where this rank writes no file.
  std::string ending(const std::string& best, bool has_final) const;

 private:
  // Writes an object into run.json, or says that it is not there.
  void record(const std::string& key, const std::string& json);
  void say(const StepMetrics& row);

  Run run_;
  TrainConsole& console_;
  SystemClock clock_;
  std::int64_t started_ns_;
  std::optional<MetricsFile> file_;
  std::optional<StepMetrics> row_;  // finished, its time not yet known
  // The step and the loss of the first row and of the last one, and the last validation loss.
  std::optional<std::pair<std::int64_t, double>> first_loss_;
  std::pair<std::int64_t, double> last_loss_;
  std::vector<ValidationLoss> last_validation_;
  LossCurve losses_;
  TimeSummary summary_;
  EnergySum energy_;
  std::string run_dir_;  // of the first rank
  FirstSteps first_steps_;
  bool has_told_first_steps_ = false;
};

}  // namespace terrace
