#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/log.h"
#include "offload/nvme_store.h"
#include "runtime/engine/compute_backend.h"
#include "runtime/engine/step_bodies.h"
#include "runtime/engine/training_state.h"
#include "runtime/plan/auto_placement.h"
#include "runtime/step/lane_executor.h"

namespace terrace {

struct EngineOptions {
  const ComputeBackend* backend = nullptr;  // null: the CPU device. Outlives the engine
  ModelConfig model;
  BatchShape batch;
  DType compute_type = DType::kBF16;  // fp16, with its loss scale: of a backend alone
  DType gradient_type = DType::kF32;  // of finished gradients; or bf16
  PlacementRequest placement;
  TierBudgets budgets;
  OptimizerOptions optimizer;
  NvmeStoreOptions nvme;   // no directories: no NVMe tier
  int threads = 1;         // of the compute lane
  int update_threads = 1;  // of the update lane
  // Where they and the host arena are to be: ThreadPlan (memory/host/thread_plan.h).
  std::vector<int> cpus;
  std::vector<int> numa_nodes;
  bool evaluates = true;       // false: evaluate() is never called, and takes no room
  OpBodies* bodies = nullptr;  // run the steps in place of the engine's own, and outlive it
  std::int64_t chunk_elements = kChunkElements;  // the most; tests make it small
  std::int32_t zero_stage = 0;                   // what data-parallel ranks share out
  // Of one: alone. With the devices' own where the backend has an exchange. Outlive the engine.
  StepRanks ranks;
  SharedPlans* shared_plans = nullptr;  // of ranks that are threads; used by plan_engine() alone
  PipelineSchedule pipeline_schedule = PipelineSchedule::k1F1B;
  std::int32_t virtual_stages = 1;  // pieces of the model that a pipeline stage has
  bool sequence_parallel = true;    // where ranks are tensor-parallel
};

// A compiled and verified training step, and the evaluation that shares its memory. Nothing is
// allocated yet.
struct EnginePlan {
  StepModel model;
  StepPlan training;
  Program evaluation;  // empty if the engine does not evaluate
  // Of training and evaluation together.
  Ledger ledger;
};

// Returns the sizes and costs of a rank's step, which its plan starts from.
StepModel step_model_of(const EngineOptions& options);

// Throws OutOfMemory if it does not fit the budgets.
EnginePlan plan_engine(const EngineOptions& options);

// The memory that an engine of a plan takes. State on drives is not among it.
struct EngineMemory {
  std::size_t device_bytes = 0;
  std::size_t host_bytes = 0;
  // Of the compiled programs and what runs them, in the process and outside the budgets. Estimated
  // by the number of ops.
  std::size_t program_bytes = 0;
};
EngineMemory engine_memory(const EnginePlan& plan);

// Compiles the programs of the other stages of a rank's pipeline, as far as there are any, and
// checks that they and its own, of `plan`, meet each other: then no rank can wait for another
// forever. Throws OutOfMemory where another stage does not fit the budgets.
void check_stages(const EngineOptions& options, const EnginePlan& plan);

struct StepBatch {
  std::int64_t step = 0;                 // counted from 1
  std::span<const std::int32_t> tokens;  // per micro-batch: R tokens, then R targets
  std::int64_t target_tokens = 0;        // targets that are not negative, of all ranks
  double learning_rate = 0;
};

struct StepOutcome {
  const RunReport* report = nullptr;  // good until the next finish_step() or drain()
  StepResult result;
};

// Owns the memory, lanes and state of a training run, and runs its steps. The
// updates of a step run under the next one; drain() completes them. Used by one thread. With
// several ranks each has an engine of the same options, and all do the same calls in the same
// order: steps, evaluations and drains have collectives.
class Engine {
 public:
  // Makes the arenas and the NVMe files of the plan. Throws OutOfMemory, ConfigError, IoError.
  Engine(const EngineOptions& options, const EnginePlan& plan, Log& log);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Sets all parameters and optimizer state. Tells after each part how many of all are done.
  void fill_state(
      const StateSource& source, FillProgress progress = [](std::int64_t, std::int64_t) {});
  // The state in its homes on this rank; complete after fill_state() and after each drain().
  TrainingState& state() { return *state_; }
  // What a checkpoint keeps of the loss scale; none where losses are, and were, not scaled.
  // Likewise complete.
  std::optional<LossScaleState> loss_scale();
  // Goes on with what a checkpoint has kept, also where losses are not scaled any more. Before the
  // first step.
  void set_loss_scale(const LossScaleState& state);

  // Starts a step, which takes the batch by copy. At most two are unfinished.
  void begin_step(const StepBatch& batch);
  // Waits for the oldest unfinished step. Throws what failed it: NotFinite, IoError, CorruptData,
  // CommError.
  StepOutcome finish_step();
  // Throws what has failed here so far, of whatever step: the reason of an abort that this rank
  // hears of, where it is its own.
  void rethrow_failure() const;
  int unfinished_steps() const;
  // After all steps are finished: runs the updates that the last one left. None left: null. The
  // report is good until the next finish_step() or drain().
  const RunReport* drain();

  // Sum of the losses of this rank's batch's counted targets, without changing anything; 0 but on
  // a rank that has_losses(). Only when drained.
  double evaluate(std::span<const std::int32_t> tokens);

  const UnitCompute& compute() const { return compute_; }
  // Its own, also where others run the steps in their place.
  const StepBodies& bodies() const { return *bodies_; }
  std::vector<StorePath> store_paths() const;
  int compute_threads() const { return compute_workers_.threads(); }
  int update_threads() const { return update_workers_.threads(); }

 private:
  struct Slot;  // what a run in flight borrows

  ExecutorMemory make_memory();
  void make_store(const NvmeStoreOptions& options, Log& log);
  void fill_constants();
  std::unique_ptr<StepBodies> make_bodies(const Program& program);
  void prepare_kernels();
  // A run whose collectives all came to their end.
  const RunReport& retire(LaneExecutor& executor) const;
  RunInput input_for(Slot& slot, const StepBatch& batch);
  // Of the training program; none where losses are not scaled.
  std::span<std::byte> loss_scale_bytes();

  EngineOptions options_;
  const EnginePlan& plan_;
  std::vector<UnitLayout> layout_;
  WorkerArena compute_workers_;
  WorkerArena update_workers_;
  UnitCompute compute_;
  std::unique_ptr<ComputeDevice> compute_device_;
  Device& device_;
  std::unique_ptr<DeviceMemory> device_memory_;
  HostMemory host_memory_;
  HostMemory token_memory_;  // of the two slots
  // Of these two, where the device wants it.
  std::unique_ptr<HostRegistration> locked_host_;
  std::unique_ptr<HostRegistration> locked_tokens_;
  std::unique_ptr<BlockStore> store_;  // uses the host memory: destroyed before it
  ExecutorMemory memory_;
  SystemClock clock_;
  std::unique_ptr<HomeAccess> homes_;
  std::unique_ptr<TrainingState> state_;
  std::unique_ptr<StepBodies> bodies_;
  std::unique_ptr<StepBodies> evaluation_bodies_;
  std::unique_ptr<LaneExecutor> evaluator_;  // made at the first evaluation
  std::vector<Slot> slots_;
  std::int64_t begun_ = 0;
  std::int64_t finished_ = 0;
  std::int64_t last_step_ = 0;
  bool updates_pending_ = false;
  std::optional<LossScaleState> resumed_loss_scale_;
  std::unique_ptr<LaneExecutor> executor_;  // last: its lanes use all of the above
};

}  // namespace terrace
