#pragma once

#include <optional>
#include <span>
#include <vector>

#include "base/log.h"
#include "runtime/engine/tier_runtime.h"
#include "runtime/engine/training_state.h"
#include "runtime/model/unit_compute.h"

namespace terrace {

// The budgets and threads that the ranks of a pipeline stage plan for.
struct StageLimits {
  TierBudgets budgets = {};
  int threads = 1;
  int update_threads = 1;

  friend bool operator==(const StageLimits&, const StageLimits&) = default;
};

// A decoder that is to be trained, and how to train it.
struct ModelRuntimeOptions : TierRuntimeOptions {
  ModelConfig model;
  BatchShape batch;
  DType compute_type = DType::kBF16;  // fp16, with its loss scale: only with a backend
  bool sequence_parallel = true;      // where ranks are tensor-parallel
  // The seed that decides which elements the adapter's dropout drops.
  std::uint64_t dropout_seed = 0;
  // The form of the frozen matrices of blocks. Unset: they are kept in the compute type.
  std::optional<QuantizedForm> base_quantization;
  // How many neighbouring experts of a layer are moved, kept at home, divided over ranks and
  // updated as one group of parameters (docs/experts.md). 0: as many as the memory allows. It must
  // be 0 for a model without experts.
  std::int64_t experts_per_group = 0;
  // By pipeline stage. Empty: all stages have this rank's budgets and threads.
  std::vector<StageLimits> stage_limits = {};
};

// Returns the options of the rank at the same place of another pipeline stage.
ModelRuntimeOptions options_of_stage(ModelRuntimeOptions options, int stage);

// Returns the number of experts in a group: the options' number or, where they leave it open, the
// planner's choice (docs/experts.md). Returns 0 for a model without experts.
std::int64_t experts_per_group_of(const ModelRuntimeOptions& options);

// Returns the sizes and costs of a rank's step. Throws ConfigError where ranks cannot share units.
StepModel step_model_of(const ModelRuntimeOptions& options);

// Returns what computes the units of a rank.
UnitCompute unit_compute_of(const ModelRuntimeOptions& options);

// Plans the training of the decoder. Throws OutOfMemory if it does not fit the budgets, and
// ConfigError if the options contradict each other.
TierPlan plan_model(const ModelRuntimeOptions& options);

// The memory that an engine of a plan takes. State on drives is not among it.
struct PlanMemory {
  std::size_t device_bytes = 0;
  std::size_t host_bytes = 0;
  // The memory that the compiled programs, and the executors that run them, take in the process,
  // outside the budgets. Estimated by the number of ops.
  std::size_t program_bytes = 0;
  // The buffers that state passes through between steps, on its way to its homes and back. They are
  // outside the budgets, too.
  std::size_t home_buffer_bytes = 0;

  std::size_t beside_budgets() const { return program_bytes + home_buffer_bytes; }
};
PlanMemory memory_of_plan(const TierPlan& plan);

// Compiles the programs of the other stages of a rank's pipeline, if there are any. Checks that the
// messages of all of them and of its own program, in `plan`, meet each other: then no rank can wait
// for another forever. Throws OutOfMemory where another stage does not fit the budgets.
void check_stages(const ModelRuntimeOptions& options, const TierPlan& plan);

struct StepBatch {
  std::int64_t step = 0;                 // counted from 1
  std::span<const std::int32_t> tokens;  // per micro-batch: the lists of RowNumbers
  std::int64_t target_tokens = 0;        // targets that are not negative, of all ranks
  double learning_rate = 0;
  std::optional<std::int32_t> micro_batches = {};  // as TierStep has it
  std::int64_t small_batch_tokens = 0;             // as TierStep::small_batch_terms
};

using StepOutcome = TierStepOutcome;

// A TierRuntime of a decoder: gives it the model's units, what they compute, and their first state.
// The comments on TierRuntime's calls hold here too. Used by one thread.
class ModelRuntime {
 public:
  // Makes the arenas and the NVMe files of the plan. Throws OutOfMemory, ConfigError, IoError.
  ModelRuntime(const ModelRuntimeOptions& options, const TierPlan& plan, Log& log);

  // Sets all parameters and optimizer state. Tells after each part how many of all are done. A
  // matrix that is kept quantised is made from the numbers that `source` has. While it is made, it
  // takes as much additional memory of the process as it has bytes.
  void fill_state(
      const StateSource& source, FillProgress progress = [](std::int64_t, std::int64_t) {});
  // The state in its homes on this rank; complete after fill_state() and after each drain(). Throws
  // UsageError at other times.
  TrainingState& state() {
    tiers_.state();
    return state_;
  }
  // Returns the gate for a thread that reads state() beside the next steps, as TierRuntime says.
  HomeGate& home_gate() { return tiers_.home_gate(); }
  // Returns the loss scale as a checkpoint keeps it; none where losses are not scaled and never
  // were.
  std::optional<LossScaleState> loss_scale() { return tiers_.loss_scale(); }
  // Goes on with the loss scale of a checkpoint, also where losses are not scaled any more.
  void set_loss_scale(const LossScaleState& state) { tiers_.set_loss_scale(state); }

  // Starts a step, which takes the batch by copy.
  void begin_step(const StepBatch& batch);
  StepOutcome finish_step() { return tiers_.finish_step(); }
  void rethrow_failure() const { tiers_.rethrow_failure(); }
  int unfinished_steps() const { return tiers_.unfinished_steps(); }
  const RunReport* drain() { return tiers_.drain(); }

  // Returns the sum of the losses of the counted targets of this rank's batch, and changes nothing.
  // Returns 0 on a rank where has_losses() is false. Only when drained. A list of samples must hold
  // -1 in all rows: elements would be dropped in the others.
  double evaluate(std::span<const std::int32_t> tokens) {
    return tiers_.evaluate(std::as_bytes(tokens));
  }

  double evaluated_compute_s() const { return tiers_.evaluated_compute_s(); }

  const UnitCompute& compute() const { return compute_; }
  const StepBodies& bodies() const { return tiers_.bodies(); }
  // Returns the program that steps run. The reports number its ops.
  const Program& program() const { return tiers_.program(); }
  std::vector<StorePath> store_paths() const { return tiers_.store_paths(); }
  int compute_threads() const { return tiers_.compute_threads(); }
  int update_threads() const { return tiers_.update_threads(); }

 private:
  const ModelRuntimeOptions options_;
  const std::vector<UnitLayout> layout_;
  UnitCompute compute_;
  TierRuntime tiers_;
  TrainingState state_;
};

}  // namespace terrace
