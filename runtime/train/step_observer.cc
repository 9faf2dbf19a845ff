#include "runtime/train/step_observer.h"

#include "base/error.h"
#include "memory/host/process_memory.h"

namespace terrace {

void StepObserver::open_trace(const std::string& run_dir, const std::optional<StepRange>& steps,
                              std::int64_t done_steps) {
  if (steps && steps->last > done_steps) trace_.emplace(run_dir, program_, *steps);
}

void StepObserver::measure(RunTotals& totals) {
  totals.process_peak_bytes = peak_resident_bytes();
  energy_.take(clock_.now_ns(), totals);
}

void StepObserver::add(const RunReport& report) {
  waits_.add(report);
  if (report.part != Part::kDrain && ++steps_ > 1) {
    compute_s_ += report.busy_s.at(static_cast<std::size_t>(Lane::kCompute));
  }
  if (trace_) trace_->add(report, waits_);
}

std::string StepObserver::finish() { return trace_ ? trace_->finish() : std::string(); }

std::unique_ptr<HashFile> hash_file_for(const RunOptions& run, const std::string& run_dir, int rank,
                                        bool is_on_gpu) {
  if (!run.record_hashes) return nullptr;
  if (is_on_gpu) {
    throw ConfigError("--record-hashes is not built for GPUs: the host takes the hashes",
                      "train with --device cpu, or leave it out");
  }
  return std::make_unique<HashFile>(run_dir, rank);
}

}  // namespace terrace
