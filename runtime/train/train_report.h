#pragma once

#include <span>
#include <string>
#include <vector>

#include "offload/block_store.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/data/dataset.h"
#include "runtime/engine/model_runtime.h"
#include "runtime/step/step_waits.h"
#include "runtime/train/metrics_file.h"
#include "runtime/train/train_setup.h"
#include "runtime/train/trainer.h"

// The texts that training prints on the console.
namespace terrace {

// Describes the model, the batch, the program and the ledger, before the first step, with the bytes
// that each link will carry in a step.
std::string describe_plan(const ModelRuntimeOptions& options, const TierPlan& plan);
// Returns the codes that pass between data-parallel ranks, such as "gradients as int4 codes with
// error feedback, parameters as int8 codes"; empty if none do.
std::string describe_wire(const WireForms& wire);
// How much of the data a run uses.
struct UsedData {
  std::int64_t total_steps = 0;
  std::int64_t total_samples = 0;
  std::int64_t samples_per_step = 0;
  std::vector<std::int64_t> evaluated_samples = {};  // of each validation set by one evaluation
  std::int64_t evaluated_every = 0;                  // steps; 0: after the last alone
  bool is_at_most = false;                           // the steps may have fewer samples
};
// Describes how much data there is to train on, how much of it the run goes through, and what an
// evaluation costs.
std::string describe_data(const Dataset& data, const UsedData& use);
// Returns a command that continues a text with the result of a run, or that chats with it.
std::string trial_command(const TrainCommand& command, const std::string& run_dir, bool chats);
// Describes where a run was stopped, with the command that goes on from there. `signal`: the signal
// that asked for the stop; 0: another rank got it.
std::string describe_stop(int signal, std::int64_t step, std::int64_t total_steps,
                          const TrainCommand& command, const std::string& run_dir);
// Describes a stop that --stop-after-step asked for, with the command that goes on.
std::string describe_asked_stop(std::int64_t step, std::int64_t total_steps,
                                const TrainCommand& command, const std::string& run_dir);
// Returns a text quoted as one word for a shell.
std::string in_shell(const std::string& text);
// Returns a line for each directory of the NVMe tier: the store that serves it and, if there are
// several directories, the directory's part of the `written_bytes` that this rank, one of `ranks`,
// writes in a step.
std::string describe_store(std::span<const StorePath> paths, double written_bytes, int ranks);
// Describes the threads and the GPU that a rank of a plan computes with, and its stores, on a line
// each.
std::string describe_machine(const MachineShare& machine, const DeviceChoice& device,
                             const TierPlan& plan, std::span<const StorePath> stores);
// Describes where a run on `device` ("cpu" or "cuda") goes on. Adds a second line where the steps
// until then were computed by another kind of device or with another `arithmetic`: the steps to
// come will then not have the bits of a run that stays where it began.
std::string describe_resume(const CheckpointProgress& progress, const std::string& device,
                            const std::string& arithmetic);
std::string describe_step(const StepMetrics& metrics, std::int64_t last_step);
// Returns the losses of an evaluation, each with the name that it has in metrics.jsonl.
std::string describe_losses(const std::vector<ValidationLoss>& losses);

// A summary of where the time of a run went.
class TimeSummary {
 public:
  void add(const StepMetrics& metrics);
  // Returns the busy share of each lane, what the compute lane waited for, what limited the run,
  // and how much was written to the drives. With several ranks, bytes are the sum over all ranks,
  // busy times are the busiest rank's, and waits of the compute lane are this rank's. It also names
  // the rank that makes the others wait.
  std::string text(const StepWaits& waits, int ranks) const;
  // Returns the waits of the compute lane as an object for run.json; empty where no step was run.
  std::string waits_json(const StepWaits& waits) const;

 private:
  std::string describe_lanes() const;
  std::string describe_waits(const StepWaits& waits) const;
  std::string describe_limit() const;
  std::string describe_ranks() const;

  std::int64_t steps_ = 0;
  double seconds_ = 0;
  double tokens_ = 0;
  std::array<double, kLaneCount> busy_s_{};
  std::array<double, kLaneCount> bytes_{};
  RankWaits rank_waits_;
};

}  // namespace terrace
