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

// Which ranks do what. Throws ConfigError where `ranks` cannot be divided so.
MeshShape mesh_for(const TrainOptions& options, int ranks);

// --zero-stage, or what it is where none is given.
std::int32_t zero_stage_for(const TrainOptions& options, const MeshShape& shape);

// --collective-timeout.
CommunicatorOptions communicator_options_for(const RankOptions& options);

// What a rank has of the machine.
struct MachineShare {
  HostLimits limits;  // of the host
  Topology topology;
  ThreadPlan threads;                 // of the rank
  std::int32_t ranks_on_host = 1;     // that share it
  std::int32_t ranks_in_process = 1;  // of these, threads of one process
  std::optional<GpuChoice> gpu;       // none: the CPU device computes
};

// What a rank gets of it. Throws ConfigError and EnvironmentError as choose_gpu() does.
MachineShare machine_share(const TrainOptions& options, const LaunchedRanks& ranks);
// The GPU that it computes on, or why it computes on none though there are GPUs; empty where there
// are none.
std::string describe_gpu(const MachineShare& machine, const DeviceChoice& device, int ranks);

// Gives the engine the ranks, and of threads and budgets what all of them have: ranks with other
// limits would compile other programs. All ranks call it.
void agree_on_limits(const TrainOptions& options, const RankGroup& ranks,
                     ModelRuntimeOptions& engine);

// The tier that a flag names; none for auto.
std::optional<Tier> tier_of(Placement placement);
// The budgets of one rank; the ranks of the host share its memory.
TierBudgets budgets_for(const TierOptions& tiers, const MachineShare& machine);

// Throws OutOfMemory where budgets that were asked for are more than this machine has.
void check_budgets(const TierOptions& tiers, const MachineShare& machine);
// Throws ConfigError where a directory of --nvme is not there, also where nothing would go there.
void check_drives(const TierOptions& tiers);

// What the options mean on this machine. Each throws ConfigError naming the flag, or OutOfMemory.
// The backend is the caller's to set. A dry run may be for another machine, so for that
// engine_options_for() leaves check_budgets() and check_drives() to the caller.
ModelRuntimeOptions engine_options_for(const TrainOptions& options, const ModelConfig& model,
                                       const MachineShare& machine);
DatasetOptions dataset_options_for(const TrainOptions& options, const ModelConfig& model,
                                   std::int64_t sequence_length);
std::int64_t sequence_length_for(const TrainOptions& options, const ModelConfig& model);
DType compute_type_for(Precision precision);
// The types of final/: those of --save-dtype; else those of the weights that were loaded, or, of
// random ones, the type that computes.
WeightTypes result_types_for(const TrainOptions& options, const std::optional<WeightTypes>& loaded,
                             DType compute_type);
// Returns the step that the whole run ends with: --max-steps, or the one that uses up the samples
// of --num-train-epochs, given what the steps before have used up (with other samples in a step,
// where the run was resumed) and the samples of a step from now on.
std::int64_t total_steps_for(const TrainOptions& options, const Dataset& data,
                             std::int64_t samples_per_step, const CheckpointProgress& done);
LrSchedule schedule_for(const TrainOptions& options, std::int64_t total_steps);

}  // namespace terrace
