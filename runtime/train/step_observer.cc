#include "runtime/train/step_observer.h"

#include "base/error.h"
#include "memory/host/process_memory.h"

namespace terrace {
namespace {

// Returns how long the compute lane stood still for work that this rank does alone.
double stood_still_s(const StepWaits& waits) {
  double waited_s = 0;
  for (std::size_t l = 0; l < kLaneCount; ++l) {
    const Lane lane = static_cast<Lane>(l);
    if (traits_of(lane).axis == MeshAxis::kNone) waited_s += waits.waited_s(lane);
  }
  return waited_s;
}

}  // namespace

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
  const double stood_still_so_far_s = stood_still_s(waits_);
  if (report.part != Part::kDrain && ++steps_ > 1) {
    work_s_ += report.busy_s.at(static_cast<std::size_t>(Lane::kCompute)) + stood_still_so_far_s -
               stood_still_s_;
  }
  stood_still_s_ = stood_still_so_far_s;
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
