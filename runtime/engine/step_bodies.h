#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "memory/host/worker_arena.h"
#include "optim/grad_norm.h"
#include "runtime/engine/compute_backend.h"
#include "runtime/engine/optimizer_options.h"
#include "runtime/engine/step_ranks.h"
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

// The largest number of buffers between the steps of a unit's pass.
inline constexpr std::size_t kMostBetween = 32;

// Takes elements [begin, begin + gradient.size()) of the finished gradient of a group. Called by
// the lane that updates.
using GradientSink =
    std::function<void(std::int32_t group, std::int64_t begin, std::span<const float> gradient)>;

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
  void give_gradients_to(const GradientSink* sink) {
    sink_ = sink;
    if (sink == nullptr) is_giving_ = false;
  }
  // Makes the norm of the next step wait until it is released, so that the step may be abandoned
  // however many of its tasks are done. Used with can_skip_steps.
  void hold_norm() { norm_is_held_.store(true, std::memory_order_release); }
  void release_norm() {
    norm_is_held_.store(false, std::memory_order_release);
    norm_is_held_.notify_all();
  }

 private:
  void compute(const Op& op, const RunInput& input, NativeStream stream);
  void joined_backward(const Op& op, const RunInput& input, const KernelContext& context);
  void run_task(const KernelContext& context, const ComputeTask& task, const UnitMemory& memory);
  // Returns the view of a finished gradient.
  TensorView gradient_view(const Access& access) const;
  void round_gradient(const Op& op, NativeStream stream);
  void accumulate(const Op& op, NativeStream stream);
  void norm_partials(const Op& op, NativeStream stream);
  void collective(const Op& op, NativeStream stream);
  void tensor_collective(const Op& op, NativeStream stream);
  void pass_between_stages(const Op& op, NativeStream stream);
  void gather_sums(const Op& op, NativeStream stream);
  void norm_finish(const Op& op, const RunInput& input);
  // Does the same with a loss scale; `norm` is the gradients' norm before they are divided by it.
  void scaled_norm_finish(const Op& op, const RunInput& input, double loss, double norm);
  LossScaleState loss_scale(const Op& op) const;
  // Sets the scalars of each update rule, which are those given and the rule's own: of its update
  // with this number.
  void set_step_scalars(const Op& op, StepScalars scalars, std::int64_t update_number,
                        double learning_rate);
  void update(const Op& op, NativeStream stream);
  void update_with_checksums(const UpdateRule& rule, const ParameterUpdate& update,
                             const UpdateChecksums::Parts& parts);
  // Returns the norm of the gradient over all ranks.
  double norm_of_gradient(const Op& op) const;
  // Adds the partials of a group that a tensor-parallel rank has. `at` is the index of the group's
  // first among the rank's partials.
  void add_partials(const Op& op, std::int32_t group, std::int32_t tensor_rank, std::size_t at,
                    GradientNorm& norm) const;
  const double* sums_of_rank(const Op& op, std::int32_t rank) const;
  double sum_of_losses(const Op& op) const;
  // The memory in which a unit finds the buffers of an op.
  struct OpMemory {
    void fill(StepBodies& bodies, const Op& op, const RunInput& input);

    UnitMemory memory;
    std::array<std::byte*, kMostBetween> between{};
  };
  // Return the memory of the groups and of the inputs of the op's unit. Compute lane only; good
  // until the next call.
  std::span<const GroupMemory> group_memory(const Op& op);
  std::span<const InputMemory> input_memory(const Op& op);
  std::span<std::byte> bytes(const Access& access) const;
  Communicator& communicator_for(const StepGroup& group, const Access& access) const {
    return group.of(program_.buffers.at(access.buffer).tier);
  }
  std::byte* data(const Op& op, Role role) const;
  const LaneKernels& kernels_of(const Op& op) const;
  KernelContext context_for(const Op& op, NativeStream stream) const;

  const Program& program_;
  const ExecutorMemory& memory_;
  const StepModel& model_;
  StepCompute& compute_;
  OptimizerOptions optimizer_;
  const LaneKernels device_kernels_;
  const LaneKernels host_kernels_;
  WorkerArena& compute_workers_;
  WorkerArena& update_workers_;
  const OptionNames name_of_option_;
  StepRanks ranks_;
  const UpdateChecksums update_checksums_;
  std::atomic<bool> norm_is_held_{false};
  const GradientSink* sink_ = nullptr;  // set by the caller while the norm is held
  bool is_giving_ = false;              // from the norm on: until then the last step updates
  std::atomic<bool> compute_failed_{false};
  // The arguments of the embedding's backward; compute lane only.
  std::vector<std::byte*> hidden_gradients_;
  std::vector<TensorView> embedding_views_;
  // They belong to the unit whose op runs; compute lane only.
  std::vector<GroupMemory> groups_;
  std::vector<InputMemory> inputs_;
};

}  // namespace terrace
