#pragma once

#include "memory/host/host_limits.h"
#include "memory/host/thread_plan.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/checkpoint/weight_types.h"
#include "runtime/config/train_options.h"
#include "runtime/data/dataset.h"
#include "runtime/engine/model_runtime.h"
#include "runtime/train/gpu_choice.h"
#include "runtime/train/rank_group.h"
#include "runtime/train/trainer.h"

namespace terrace {

// Returns the mesh of the ranks, which says what each rank does. Throws ConfigError where `ranks`
// cannot be divided like that. `ranks_on_host`: of every host.
MeshShape mesh_for(const TrainOptions& options, int ranks, int ranks_on_host);
// The same for started ranks, all of which call it.
MeshShape mesh_for(const TrainOptions& options, const LaunchedRanks& ranks);

// Returns --zero-stage, or its default where none is given.
std::int32_t zero_stage_for(const TrainOptions& options, const MeshShape& shape);

// Returns the options that --collective-timeout and --hierarchical-collectives set.
CommunicatorOptions communicator_options_for(const RankOptions& options);

// A rank's share of the machine.
struct MachineShare {
  HostLimits limits;  // of the host
  Topology topology;
  ThreadPlan threads;                 // of the rank
  std::int32_t ranks_on_host = 1;     // that share it
  std::int32_t ranks_in_process = 1;  // of these, the threads of one process
  bool is_first_on_host = true;       // of the ranks that share it
  std::optional<GpuChoice> gpu;       // none: the CPU device computes
};

// Returns the share that a rank gets. Throws ConfigError and EnvironmentError as choose_gpu() does.
MachineShare machine_share(const TrainOptions& options, const LaunchedRanks& ranks);
// Describes the GPU that the rank computes on, or why it uses none although there are GPUs; empty
// where there are no GPUs.
std::string describe_gpu(const MachineShare& machine, const DeviceChoice& device, int ranks);

// Returns the tier that a flag names; none for auto.
std::optional<Tier> tier_of(Placement placement);
// Returns the budgets of one rank; the ranks of a host share its memory.
TierBudgets budgets_for(const TierOptions& tiers, const MachineShare& machine);

// Returns the bytes of this host's memory that a rank's budgets name together.
std::size_t budgeted_memory(const TierOptions& tiers, const MachineShare& machine);
// Returns the same for all ranks of this host. All ranks call it.
std::size_t budgets_on_host(const TierOptions& tiers, const MachineShare& machine,
                            const RankGroup& ranks);
// Throws OutOfMemory where the budgets exceed this machine's memory. `on_host`: budgets_on_host().
void check_budgets(const TierOptions& tiers, const MachineShare& machine, std::size_t on_host);
// Throws ConfigError where a directory of --nvme does not exist, even if nothing would be stored
// there.
void check_drives(const TierOptions& tiers);

// The functions below turn the options into settings for this machine. Each throws ConfigError
// naming the flag, or OutOfMemory. The caller sets the backend, and agrees on limits with the other
// ranks (runtime/train/rank_limits.h). A dry run may be for another machine, so for a dry run
// engine_options_for() leaves check_drives() to the caller.
ModelRuntimeOptions engine_options_for(const TrainOptions& options, const ModelConfig& model,
                                       const MachineShare& machine);
DatasetOptions dataset_options_for(const TrainOptions& options, const ModelConfig& model,
                                   std::int64_t sequence_length);
// Returns the shape of a micro-batch. Its rows are counted in 32 bits, both here and in the
// libraries that multiply them.
BatchShape batch_for(const TrainOptions& options, const ModelConfig& model);
std::int64_t sequence_length_for(const TrainOptions& options, const ModelConfig& model);
DType compute_type_for(Precision precision);
// Returns the types of final/: the type of --save-dtype if it is given, else the types of the
// loaded weights, or for random weights the type that computes.
WeightTypes result_types_for(const TrainOptions& options, const std::optional<WeightTypes>& loaded,
                             DType compute_type);
// Returns the step that the whole run ends with: --max-steps, or the step that uses up the samples
// of --num-train-epochs. The latter is computed from the samples that the steps so far have used (a
// resumed run may have had other samples in a step) and the samples in a step from now on.
// `samples`: of a micro-batch on all data-parallel ranks.
std::int64_t total_steps_for(const TrainOptions& options, const Dataset& data, std::int64_t samples,
                             const CheckpointProgress& done);
LrSchedule schedule_for(const TrainOptions& options, std::int64_t total_steps);

}  // namespace terrace
