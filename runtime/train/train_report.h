#pragma once

#include <span>
#include <string>

#include "offload/block_store.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/data/dataset.h"
#include "runtime/step/step_waits.h"
#include "runtime/train/engine.h"
#include "runtime/train/metrics_file.h"

// What training says on the console, as text.
namespace terrace {

// Model, batch, program and the ledger, before the first step; with the bytes each link will carry
// in a step.
std::string describe_plan(const EngineOptions& options, const EnginePlan& plan);
// How much there is to train on, and how much of it a run of so many steps goes through.
std::string describe_data(const Dataset& data, std::int64_t total_steps,
                          std::int64_t samples_per_step);
// A line for each directory of the NVMe tier: which store serves it and, of several, what goes
// there of the `written_bytes` that this rank, of `ranks`, writes in a step.
std::string describe_store(std::span<const StorePath> paths, double written_bytes, int ranks);
// Where a run on `device` ("cpu" or "cuda") goes on; with a second line where the steps until then
// were computed by another kind of device, and those to come will not have their bits.
std::string describe_resume(const CheckpointProgress& progress, const std::string& device);
std::string describe_step(const StepMetrics& metrics, std::int64_t last_step);

// Where the time of a run went.
class TimeSummary {
 public:
  void add(const StepMetrics& metrics);
  // Busy share of each lane, what the compute lane waited for, what limited the run, and what was
  // written to the drives. Of several ranks bytes are of all, busy times of the busiest, and the
  // waits of this one.
  std::string text(const StepWaits& waits, int ranks) const;

 private:
  std::string describe_lanes() const;
  std::string describe_waits(const StepWaits& waits) const;
  std::string describe_limit() const;

  std::int64_t steps_ = 0;
  double seconds_ = 0;
  double tokens_ = 0;
  std::array<double, kLaneCount> busy_s_{};
  std::array<double, kLaneCount> bytes_{};
};

}  // namespace terrace
