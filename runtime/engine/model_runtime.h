#pragma once

#include <optional>
#include <span>
#include <vector>

#include "base/log.h"
#include "runtime/engine/tier_runtime.h"
#include "runtime/engine/training_state.h"
#include "runtime/model/unit_compute.h"

namespace terrace {

// A decoder that is to be trained, and how.
struct ModelRuntimeOptions : TierRuntimeOptions {
  ModelConfig model;
  BatchShape batch;
  DType compute_type = DType::kBF16;  // fp16, with its loss scale: of a backend alone
  bool sequence_parallel = true;      // where ranks are tensor-parallel
  // Of the frozen matrices of blocks; unset: they are kept in the compute type.
  std::optional<QuantizedForm> base_quantization;
};

// Returns the sizes and costs of a rank's step, which its plan starts from.
StepModel step_model_of(const ModelRuntimeOptions& options);

// Throws OutOfMemory if it does not fit the budgets.
TierPlan plan_model(const ModelRuntimeOptions& options);

// The memory that an engine of a plan takes. State on drives is not among it.
struct PlanMemory {
  std::size_t device_bytes = 0;
  std::size_t host_bytes = 0;
  // Of the compiled programs and what runs them, in the process and outside the budgets. Estimated
  // by the number of ops.
  std::size_t program_bytes = 0;
  // Of the buffers that state passes through on its way to its homes and from there, between steps;
  // likewise outside the budgets.
  std::size_t home_buffer_bytes = 0;

  std::size_t beside_budgets() const { return program_bytes + home_buffer_bytes; }
};
PlanMemory memory_of_plan(const TierPlan& plan);

// Compiles the programs of the other stages of a rank's pipeline, as far as there are any, and
// checks that they and its own, of `plan`, meet each other: then no rank can wait for another
// forever. Throws OutOfMemory where another stage does not fit the budgets.
void check_stages(const ModelRuntimeOptions& options, const TierPlan& plan);

struct StepBatch {
  std::int64_t step = 0;                 // counted from 1
  std::span<const std::int32_t> tokens;  // per micro-batch: the lists of RowNumbers
  std::int64_t target_tokens = 0;        // targets that are not negative, of all ranks
  double learning_rate = 0;
};

using StepOutcome = TierStepOutcome;

// A TierRuntime of a decoder: gives it the model's units, what they compute, and their first state.
// What TierRuntime says of its calls holds here too. Used by one thread.
class ModelRuntime {
 public:
  // Makes the arenas and the NVMe files of the plan. Throws OutOfMemory, ConfigError, IoError.
  ModelRuntime(const ModelRuntimeOptions& options, const TierPlan& plan, Log& log);

  // Sets all parameters and optimizer state. Tells after each part how many of all are done. A
  // matrix that is kept quantised is made from the numbers that `source` has, and takes, while it
  // is made, as much memory of the process as its bytes.
  void fill_state(
      const StateSource& source, FillProgress progress = [](std::int64_t, std::int64_t) {});
  // The state in its homes on this rank; complete after fill_state() and after each drain(). Throws
  // UsageError at other times.
  TrainingState& state() {
    tiers_.state();
    return state_;
  }
  // For one who reads state() beside the next steps, as TierRuntime says.
  HomeGate& home_gate() { return tiers_.home_gate(); }
  // What a checkpoint keeps of the loss scale; none where losses are not, and were not, scaled.
  std::optional<LossScaleState> loss_scale() { return tiers_.loss_scale(); }
  // Goes on with what a checkpoint has kept, also where losses are not scaled any more.
  void set_loss_scale(const LossScaleState& state) { tiers_.set_loss_scale(state); }

  // Starts a step, which takes the batch by copy.
  void begin_step(const StepBatch& batch);
  StepOutcome finish_step() { return tiers_.finish_step(); }
  void rethrow_failure() const { tiers_.rethrow_failure(); }
  int unfinished_steps() const { return tiers_.unfinished_steps(); }
  const RunReport* drain() { return tiers_.drain(); }

  // Sum of the losses of this rank's batch's counted targets, without changing anything; 0 but on
  // a rank that has_losses(). Only when drained.
  double evaluate(std::span<const std::int32_t> tokens) {
    return tiers_.evaluate(std::as_bytes(tokens));
  }

  const UnitCompute& compute() const { return compute_; }
  const StepBodies& bodies() const { return tiers_.bodies(); }
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
