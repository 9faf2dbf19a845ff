#pragma once

#include <optional>

#include "memory/host/worker_arena.h"
#include "runtime/engine/compute_backend.h"
#include "runtime/engine/exchange_bodies.h"
#include "runtime/engine/norm_bodies.h"
#include "runtime/engine/optimizer_options.h"
#include "runtime/engine/step_ranks.h"
#include "runtime/engine/unit_bodies.h"
#include "runtime/engine/update_checksums.h"
#include "runtime/model/option_names.h"
#include "runtime/model/step_compute.h"
#include "runtime/step/lane_executor.h"

namespace terrace {

// The units, kernels and threads that compute the ops of a program, and the options that tell them
// what to compute. Borrows all but the kernels.
struct StepComputation {
  const StepModel& model;
  StepCompute& units;
  const OptimizerOptions& optimizer;
  LaneKernels kernels;                           // of the device
  WorkerArena& compute_workers;                  // serve the compute lane
  WorkerArena& update_workers;                   // serve the update lane
  OptionNames name_of_option = field_of_option;  // in errors
};

// The bodies of a program's ops: the compute of units, sums and norms of gradients, collectives,
// optimizer updates. The update lane works on host memory with the CPU's kernels, the compute lane
// on the compute tier with the device's kernels.
class StepBodies final : public OpBodies {
 public:
  // Borrows all but the options. The communicators of `ranks` serve the lanes between ranks. In
  // each group the one is used that reaches the op's memory. `store` may be null if the program has
  // no NVMe buffers.
  StepBodies(const Program& program, const ExecutorMemory& memory, BlockStore* store,
             const StepComputation& computation, const StepRanks& ranks = {});

  // Runs an op. Throws NotFinite if the gradient or the loss of a step is not a number and no lower
  // loss scale can help; nothing is updated then. Throws CommError instead where the collectives
  // that the gradient or the loss came from were ended on the way.
  void run(const Op& op, const RunInput& input, NativeStream stream) override;
  bool takes_checksums(const Op& transfer) const override {
    return update_checksums_.takes(transfer);
  }
  // Tells the other ranks at once. The remaining ops of this rank do no work, and collectives are
  // no exception: otherwise two ranks that have failed in different lanes would wait for each
  // other, and neither would come to the end of its step before the timeout. A loss or norm that is
  // not a number is different: all ranks see it for themselves, in the same step. Their collectives
  // go on, and each rank ends with that error.
  bool failed(const std::exception_ptr& error) noexcept override;
  // From now on steps update nothing, and the gradients that their updates would take go to the
  // sink. Null: steps update again. Called with a sink while the norm is held, and with null after
  // the updates of the last such step.
  void give_gradients_to(const GradientSink* sink) { gradients_.give_to(sink); }
  // Makes the norm of the next step wait until it is released, so that the step may be abandoned
  // however many of its tasks are done. Used with can_skip_steps.
  void hold_norm() { norms_.hold(); }
  void release_norm() { norms_.release(); }

 private:
  TensorView typed_view(const Access& access, DType type) const;
  // Returns the view of rows of codes.
  TensorView rows_view(const Access& access, std::int64_t rows) const;
  // Return the view of a finished gradient, and of a sum over micro-batches.
  TensorView gradient_view(const Access& access) const {
    return typed_view(access, model_.gradient_type);
  }
  TensorView sum_view(const Access& access) const { return typed_view(access, DType::kF32); }
  void round_gradient(const Op& op, NativeStream stream);
  void encode(const Op& op, NativeStream stream);
  void decode(const Op& op, NativeStream stream);
  void accumulate(const Op& op, NativeStream stream);
  void norm_partials(const Op& op, const TensorView& gradient, NativeStream stream);
  void update(const Op& op, NativeStream stream);
  void update_piece(const Op& op, const HomePart& home, std::int32_t piece,
                    const ParameterUpdate& whole, NativeStream stream);
  void update_with_checksums(const UpdateRule& rule, const ParameterUpdate& update,
                             const UpdateChecksums::Parts& parts);
  bool is_on_host(const Op& op) const;
  const LaneKernels& kernels_of(const Op& op) const;
  KernelContext context_for(const Op& op, NativeStream stream) const;

  const OpBytes bytes_;
  const StepModel& model_;
  const OptimizerOptions optimizer_;
  const LaneKernels device_kernels_;
  const LaneKernels host_kernels_;
  WorkerArena& compute_workers_;
  WorkerArena& update_workers_;
  // Serves the code lane, if ranks exchange codes: one thread, which leaves cores to compute.
  mutable std::optional<WorkerArena> code_workers_;
  const StepRanks ranks_;
  const UpdateChecksums update_checksums_;
  GivenUpUpdates gradients_;
  UnitBodies units_;
  NormBodies norms_;
  const ExchangeBodies exchanges_;
};

}  // namespace terrace
