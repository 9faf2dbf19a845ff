#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/log.h"
#include "runtime/engine/step_bodies.h"
#include "runtime/engine/tier_plan.h"
#include "runtime/engine/unit_state.h"
#include "runtime/step/lane_executor.h"
#include "runtime/step/unrolled_program.h"

// Training of units that a caller describes and computes, with their state in memory tiers: device
// memory, host memory and NVMe. Only the caller knows what the units are, what their parameters
// mean and what a step's input is. docs/embedding-cpp.md describes its use, and
// examples/two_units.cc is a whole training.
//
//   TierRuntimeOptions options;                         // budgets, homes, optimizer
//   TierPlan plan = plan_tiers(units, options);         // throws if it does not fit
//   TierRuntime runtime(options, plan, compute, log);   // allocates
//   runtime.fill_state(source);                         // parameters and optimizer state
//   runtime.begin_step(step);
//   runtime.finish_step();                              // has loss and norm
//   runtime.drain();                                    // the last step's updates
namespace terrace {

class RecordingBodies;  // runtime/engine/recording_bodies.h

// The input of a step and its numbers. The tasks of the step see the input by Role::kTokens.
struct TierStep {
  std::int64_t step = 0;  // counted from 1: each is one more than the one before
  // The input of all micro-batches, one after another, ComputeModel::tokens_bytes each.
  std::span<const std::byte> input = {};
  // The number of terms in the sum of all losses, over micro-batches and ranks. The loss of the
  // step is that sum divided by this number. UnitMemory::gradient_scale is the inverse of the
  // number (times fp16's loss scale).
  std::int64_t loss_terms = 1;
  double learning_rate = 0;
  // How many of the program's micro-batches this rank has in the step: the first ones. `input` has
  // room for all; what the others have is not read. Without it the step has all of them. Fewer are
  // not allowed with tasks of the caller's own (StepModel::tasks), where models have experts, or
  // with PlacementRequest::reduces_micro_batches.
  std::optional<std::int32_t> micro_batches = {};
  // With TierRuntimeOptions::measures_gradient_noise: the number of `loss_terms` in this rank's
  // small batch. That is all of its micro-batches if there are several data-parallel ranks, else
  // the first micro-batch. 0: the step has nothing to measure.
  std::int64_t small_batch_terms = 0;
};

struct TierStepOutcome {
  const RunReport* report = nullptr;  // good until the next finish_step(), drain() or evaluate()
  StepResult result;
};

// Owns the memory, lanes and state of a training, and runs its steps. The updates of a step run
// while the next step computes; drain() completes them.
//
// Used by one thread, which must not be one that computes: a StepCompute must not call it. With
// several ranks each has a runtime of the same description and options. All ranks make the same
// calls in the same order, because steps, evaluations and drains have collectives. A call that is
// out of order or has a wrong size throws UsageError, and the runtime is then as it was before the
// call. After any other error it can only be destroyed, which waits for whatever is in flight.
class TierRuntime {
 public:
  // Makes the arenas and the NVMe files of the plan. Borrows the plan, the compute and the log,
  // which outlive it; copies the options. Throws OutOfMemory, ConfigError, IoError, DeviceError.
  TierRuntime(const TierRuntimeOptions& options, const TierPlan& plan, StepCompute& compute,
              Log& log);
  // The plan has to outlive the runtime.
  TierRuntime(const TierRuntimeOptions& options, TierPlan&& plan, StepCompute& compute,
              Log& log) = delete;
  ~TierRuntime();
  TierRuntime(const TierRuntime&) = delete;
  TierRuntime& operator=(const TierRuntime&) = delete;

  // --- state, while no step is under way ---------------------------------------------------------

  // Sets all parameters and optimizer state that are at home here; `source` is asked for each field
  // of each group, in parts, by several threads. After each part `progress` is told how many of all
  // parts are done. Called once before the first step, and again at any time when drained. Blocks.
  // Throws UsageError, IoError, DeviceError, and what the source throws.
  void fill_state(ElementSource source, FillProgress progress = [](std::int64_t, std::int64_t) {});
  // Does the same for groups that have quantised matrices, or for slots that begin with zeros.
  void fill_state(
      const FillSource& source, FillProgress progress = [](std::int64_t, std::int64_t) {});
  // Reads elements [begin, begin + out.size()) of a field of a group's flat sequence, exact, as
  // fp32. With several ranks each can read the elements that are at home there. Blocks. Throws
  // UsageError, IoError, CorruptData, DeviceError.
  void read_state(StateField field, std::int32_t group, std::int64_t begin, std::span<float> out);
  // Returns the state, which can be read without the check of the range.
  UnitState& state();
  // Returns the gate for a thread that reads state() beside the next steps: it is closed when
  // drained, and opened as groups are read. UnitState is still used by one thread at a time.
  HomeGate& home_gate() { return home_gate_; }
  // Sets the content of the constants that every task may read, ComputeModel::constants_bytes at
  // most. Before the first step. Blocks. Throws UsageError, DeviceError.
  void set_constants(std::span<const std::byte> bytes);
  // Returns the scale of fp16's losses, which a saved training has to keep; none where losses are
  // not scaled and never were. Throws UsageError.
  std::optional<LossScaleState> loss_scale();
  // Goes on with a loss scale that was kept. Before the first step. Throws UsageError.
  void set_loss_scale(const LossScaleState& state);

  // --- steps -------------------------------------------------------------------------------------

  // Starts a step and returns at once: it only waits for a copy of the input. At most two steps may
  // be unfinished, so that the loads of the second overlap the compute of the first. Throws
  // UsageError.
  void begin_step(const TierStep& step);
  // Waits until the oldest unfinished step has its loss, its norm and its gradients. Updates that
  // wait for the norm may still be to come. If the step failed, throws the earliest of its errors:
  // what the compute threw, NotFinite, IoError, CorruptData, CommError or DeviceError. Throws
  // UsageError, too.
  TierStepOutcome finish_step();
  // Gives up the only unfinished step. It updates nothing; instead the gradient that each group has
  // at the step's end goes to the sink, during finish_step() and drain(), which follow in this
  // order. The next step has the same number. Needs OptimizerOptions::can_skip_steps, one rank,
  // fp32 gradients, and compute in host memory. Throws UsageError.
  void abandon_step(GradientSink sink);
  // Runs the updates that the last step left, and waits for them. Called after all steps are
  // finished. Returns null if no updates are left. Throws as finish_step() does.
  const RunReport* drain();
  // Runs the forward of all units on the input of a whole step, without changing anything. Returns
  // the sum of the losses of this rank's micro-batches, and 0 on a rank where has_losses() is
  // false. Only when drained. Blocks. Throws as finish_step() does.
  double evaluate(std::span<const std::byte> input);
  // Returns how long the last evaluation has computed, without waiting for data or other ranks, in
  // seconds.
  double evaluated_compute_s() const { return evaluated_compute_s_; }

  // --- a pause, while no step is under way and all updates are made -----------------------------

  // Returns the pages of host memory whose content must last through the pause: homes and
  // constants. Only for a runtime that computes in host memory. Throws UsageError.
  std::vector<std::span<std::byte>> kept_pages();
  // Gives the pages of all host memory back to the system; their content is lost, their addresses
  // stay. Until take_pages() only store_paths() may be called. Throws UsageError.
  void give_pages_back();
  // Faults the host memory in. The caller then puts the content of kept_pages() back. Throws
  // OutOfMemory, and may be called again after that.
  void take_pages();

  int unfinished_steps() const;
  // Throws the error of any step that has failed here so far. If this rank hears of an abort that
  // it has caused itself, that error is the reason.
  void rethrow_failure() const;

  // --- what it is made of ------------------------------------------------------------------------

  // Returns the context that tasks are called with, without workspace and stream, for kernels that
  // are prepared before the first step.
  KernelContext kernel_context();
  // Returns the runtime's own bodies, also where TierRuntimeOptions::bodies run the steps in their
  // place.
  const StepBodies& bodies() const { return *bodies_; }
  // Returns the model whose steps it runs.
  const StepModel& model() const { return plan_.model; }
  // Returns the program that steps run: the plan's, with every repetition listed. The reports
  // number its ops.
  const Program& program() const { return training_.program(); }
  std::vector<StorePath> store_paths() const;
  // Returns a share in the host memory, for a caller that keeps pointers into it after the runtime
  // has gone.
  std::shared_ptr<const HostMemory> host_memory() const { return host_memory_; }
  int compute_threads() const { return compute_workers_.threads(); }
  int update_threads() const { return update_workers_.threads(); }

 private:
  struct Slot;  // what a run in flight borrows

  void check_same_options() const;
  void check_communicators() const;
  void make_memory();
  // Returns the unit of each group.
  static std::vector<std::int32_t> owners_of(const StepModel& model);
  void make_store(Log& log);
  void clear_losses();
  void make_lanes();
  std::unique_ptr<StepBodies> make_bodies(const Program& program);
  void make_recorder(OpBodies& bodies);
  const RunReport& retire(LaneExecutor& executor);
  RunInput input_for(Slot& slot, const TierStep& step);
  void check_input(const char* call, std::span<const std::byte> input) const;
  void check_micro_batches(const TierStep& step) const;
  void check_idle(const char* call) const;
  void check_good(const char* call) const;
  BufferId buffer(const Program& program, BufferKind kind) const;
  std::span<std::byte> bytes_of_buffer(const Program& program, BufferId buffer) const;
  void copy_to_compute(BufferId buffer, std::span<const std::byte> bytes);
  // Returns the loss scale's bytes in the training program; none where losses are not scaled.
  std::span<std::byte> loss_scale_bytes() const;

  const TierRuntimeOptions options_;
  const TierPlan& plan_;
  const UnrolledProgram training_;
  std::optional<UnrolledProgram> evaluation_;  // made at the first evaluation
  StepCompute& compute_;
  WorkerArena compute_workers_;
  WorkerArena update_workers_;
  std::unique_ptr<ComputeDevice> compute_device_;
  Device& device_;
  std::unique_ptr<DeviceMemory> device_memory_;
  std::shared_ptr<HostMemory> host_memory_;
  HostMemory input_memory_;  // of the two slots
  // The registrations of these two memories, where the device wants them.
  std::unique_ptr<HostRegistration> locked_host_;
  std::unique_ptr<HostRegistration> locked_input_;
  std::unique_ptr<BlockStore> store_;  // uses the host memory: destroyed before it
  ExecutorMemory memory_;
  SystemClock clock_;
  HomeGate home_gate_{owners_of(plan_.model)};
  std::unique_ptr<HomeAccess> homes_;
  std::unique_ptr<UnitState> state_;
  std::unique_ptr<StepBodies> bodies_;
  std::unique_ptr<RecordingBodies> recorder_;  // null: no hashes are recorded
  std::unique_ptr<StepBodies> evaluation_bodies_;
  std::unique_ptr<LaneExecutor> evaluator_;  // made at the first evaluation
  double evaluated_compute_s_ = 0;
  std::vector<Slot> slots_;
  std::int64_t begun_ = 0;
  std::int64_t finished_ = 0;
  std::int64_t last_step_ = 0;
  bool has_state_ = false;
  bool updates_pending_ = false;
  bool has_failed_ = false;
  GradientSink sink_;                 // of a step that is given up
  bool updates_are_skipped_ = false;  // of the last step, whose number the next one gets
  std::optional<LossScaleState> resumed_loss_scale_;
  std::unique_ptr<LaneExecutor> executor_;  // last: its lanes use all of the above
};

}  // namespace terrace
