#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "base/clock.h"
#include "runtime/compare/hash_file.h"
#include "runtime/config/train_options.h"
#include "runtime/step/step_waits.h"
#include "runtime/train/step_energy.h"
#include "runtime/train/trace_file.h"

namespace terrace {

// Looks at the runs of a training's program: measures the memory and the energy that they take,
// finds what the ops waited for, and writes trace.json where it was asked for. Used by one thread.
class StepObserver {
 public:
  // Borrows the program.
  StepObserver(const Program& program, const StepEnergy::Setting& energy)
      : program_(program), waits_(program), energy_(energy) {}

  // See StepEnergy::describe(). All ranks call it.
  std::string describe_energy(const RankGroup& ranks) const { return energy_.describe(ranks); }
  // Begins a sequence of steps: the energy that was taken until now belongs to none of them.
  void begin_steps() { energy_.begin(clock_.now_ns()); }
  // Sets the process's peak memory, and the energy since begin_steps() or the last call.
  void measure(RunTotals& totals);

  // Opens trace.json for the steps that are to be traced, unless all of them are done: the file
  // exists already then. For the first rank.
  void open_trace(const std::string& run_dir, const std::optional<StepRange>& steps,
                  std::int64_t done_steps);
  // Adds a run. Called for every run in order, drains included.
  void add(const RunReport& report);
  // See StepWaits.
  void leave_out_until_next_run() { waits_.leave_out_until_next_run(); }
  const StepWaits& waits() const { return waits_; }
  // Return how many steps were added, and how long this rank was at work in them, both without the
  // first: its compute lane was busy, or stood still for another lane on which this rank alone
  // works. It was not at work while it waited for other ranks.
  std::int64_t measured_steps() const { return std::max<std::int64_t>(0, steps_ - 1); }
  double work_s() const { return work_s_; }
  // Completes trace.json, and returns a line that says where it is; empty where there is none.
  std::string finish();

 private:
  const Program& program_;
  StepWaits waits_;
  SystemClock clock_;
  StepEnergy energy_;
  std::optional<TraceFile> trace_;
  std::int64_t steps_ = 0;
  double work_s_ = 0;
  double stood_still_s_ = 0;  // up to the last run: for lanes on which this rank alone works
};

// Returns the file of hashes of a rank; null where no hashes are to be recorded. Throws ConfigError
// for a run that computes on a GPU, whose memory the host does not reach.
std::unique_ptr<HashFile> hash_file_for(const RunOptions& run, const std::string& run_dir, int rank,
                                        bool is_on_gpu);

}  // namespace terrace
