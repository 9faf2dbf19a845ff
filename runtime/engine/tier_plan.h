#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/function_ref.h"
#include "kernels/wire_forms.h"
#include "offload/nvme_store.h"
#include "parallel/zero_partition.h"
#include "runtime/engine/compute_backend.h"
#include "runtime/engine/optimizer_options.h"
#include "runtime/engine/step_ranks.h"
#include "runtime/plan/auto_placement.h"
#include "runtime/step/lane_executor.h"
#include "runtime/step/step_model.h"

// The plan of a training step of described units: which bytes are where, and what moves when. It is
// made before anything is allocated. TierRuntime (runtime/engine/tier_runtime.h) runs it.
namespace terrace {

class HashSink;  // runtime/engine/step_hashes.h

// The way in which units are trained. A ComputeModel (runtime/model/unit_model.h) describes the
// units.
struct TierRuntimeOptions {
  const ComputeBackend* backend = nullptr;  // null: the CPU device. Outlives the runtime
  DType gradient_type = DType::kF32;        // of finished gradients; fp32 or bf16
  PlacementRequest placement;
  TierBudgets budgets;  // bytes, by tier; unset: no limit
  OptimizerOptions optimizer;
  NvmeStoreOptions nvme;   // no directories: no NVMe tier
  int threads = 1;         // of the compute lane
  int update_threads = 1;  // of the update lane
  // The processors and NUMA nodes for these threads and the host arena: see ThreadPlan
  // (memory/host/thread_plan.h).
  std::vector<int> cpus;
  std::vector<int> numa_nodes;
  bool evaluates = true;  // false: evaluate() is never called, and takes no room
  // False: only evaluate() is called, and the plan has room for forwards alone. Then no element of
  // the units trains, and `evaluates` is true.
  bool trains = true;
  OpBodies* bodies = nullptr;  // run the steps in place of the runtime's own, and outlive it
  // Takes hashes of the values of each step, and outlives the runtime. Only where the host reaches
  // the memory in which the units compute, and no step may change nothing. Null: none are made.
  HashSink* hashes = nullptr;
  // The most elements of a chunk; tests make it small. With more than 64 data-parallel ranks a plan
  // has up to 16 times as many where they fit, unless the size is fixed.
  std::int64_t chunk_elements = kChunkElements;
  bool has_fixed_chunks = false;
  std::int32_t zero_stage = 0;  // what data-parallel ranks share out
  // Over which of them; with islands in the shape of the ranks.
  ZeroPartition zero_partition = ZeroPartition::kAll;
  WireForms wire;  // of gradients and parameters between data-parallel ranks
  // Whether steps also measure the gradient of a small batch (StepResult::small_batch), from which
  // the gradient noise scale follows. It changes no bit of the training.
  bool measures_gradient_noise = false;
  // The ranks of the step; by default this one alone. They include communicators of the devices
  // where the backend has an exchange. Outlive the runtime.
  StepRanks ranks;
  SharedPlans* shared_plans = nullptr;  // of ranks that are threads; used for the plan alone
  PipelineSchedule pipeline_schedule = PipelineSchedule::k1F1B;
  std::int32_t virtual_stages = 1;  // pieces of the model that a pipeline stage has
  // The speed of each pipeline stage relative to the others. A slower stage gets less work. Empty:
  // all are equally fast.
  std::vector<double> stage_speeds = {};
  // The order of a step's compute over all micro-batches, where the caller has its own
  // (runtime/step/task_order.h). Empty: forward and backward of all units in the order of the
  // description, with micro-batches in the order of the placement. With a schedule there are no
  // pipeline stages.
  std::vector<StepTask> schedule = {};
};

// A compiled and verified training step, and the evaluation that shares its memory. Nothing is
// allocated yet.
struct TierPlan {
  StepModel model;
  StepPlan training;   // the evaluation, where nothing trains
  Program evaluation;  // empty if there is none
  // The ledger of training and evaluation together.
  Ledger ledger;
};

// Returns how the optimizer state of parameters of this type is stored, with an update rule.
StateFormat state_format_of(DType type, const OptimizerOptions& optimizer, std::int32_t rule = 0);

// Returns the same by group; nothing where no group has a type or a rule of its own.
std::vector<StateFormat> formats_of_groups(const ComputeModel& model,
                                           const OptimizerOptions& optimizer);

// Returns the sizes and costs of a rank's step, which its plan starts from.
StepModel step_model_of(const ComputeModel& units, const TierRuntimeOptions& options);

// Plans the training of units. Throws UsageError, which names the unit or the task, where the
// description or the schedule contradicts itself, and OutOfMemory where no plan fits the budgets.
// With several ranks each makes its plan from the same description and options; only its place
// among the ranks differs.
TierPlan plan_tiers(const ComputeModel& units, const TierRuntimeOptions& options);

// Does the same for a step whose sizes are known. If evaluation does not fit, the ledger shows it.
TierPlan plan_step_model(StepModel model, const TierRuntimeOptions& options);

// Returns, in words, everything that would make the steps of a pipeline's stages wait for each
// other forever: messages that no stage receives, and cycles of waits. Returns nothing if all is
// well. `plan` is the plan of this rank's stage; `plan_of` makes the plans of the other stages.
std::vector<std::string> problems_of_stages(const StepRanks& ranks, const TierPlan& plan,
                                            FunctionRef<TierPlan(int stage)> plan_of);
// Checks that there is no such problem. It plans the other stages with this stage's description and
// options; their real plans may differ where stages have other budgets. Takes as long as planning
// each stage. Throws UsageError with the first problem.
void check_stages(const ComputeModel& units, const TierRuntimeOptions& options,
                  const TierPlan& plan);

// Returns the bytes that the larger of the plan's programs takes of the tier's arena.
std::size_t arena_bytes(const TierPlan& plan, Tier tier);
std::size_t host_arena_bytes(const TierPlan& plan);
// Returns the bytes of the input of one step: of all its micro-batches.
std::size_t step_input_bytes(const TierPlan& plan);

}  // namespace terrace
