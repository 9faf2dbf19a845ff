#pragma once

#include <array>
#include <optional>
#include <vector>

#include "runtime/step/homes.h"
#include "runtime/step/offload.h"

// The inside of the offload pass (runtime/step/offload.h). It goes through the tasks once, and
// turns each into its ops and the movement for them. lowering.cc has the tasks, lowering_unit.cc
// the ops of a unit, lowering_data.cc parameters and activations, lowering_gradients.cc gradients
// and updates. The exchange between data-parallel ranks is in lowering_zero.cc, between pipeline
// stages in lowering_pipeline.cc, between tensor-parallel ranks in lowering_tensor.cc.
namespace terrace {

// Activations stay where they are if a task at most this many tasks later needs them again: they
// would only leave and come back.
inline constexpr std::int32_t kShortGap = 2;

class Lowering {
 public:
  Lowering(const StepModel& model, const StepPolicy& policy, const std::vector<Task>& tasks,
           bool has_names);

  Draft run();

 private:
  // An activation. It is in memory, or in its home until a task needs it again.
  struct Activation {
    BufferId memory = kNoBuffer;
    std::optional<Range> away;
    std::int32_t away_since = 0;
  };
  struct Instance {
    BufferId buffer = kNoBuffer;
    std::size_t use = 0;  // index in uses_
  };
  // Notes what later tasks ask about this one.
  void note(const Task& task, std::int32_t number);
  static std::size_t forwards_of(const std::vector<Task>& tasks);
  // Returns the unit's steps that a compute task consists of.
  const std::vector<UnitStep>& steps_of(const Task& task) const;
  void lower(const Task& task);

  // --- compute -----------------------------------------------------------------------------------

  void input();
  void forward(const Task& task);
  void losses_to_host();
  // Lets the op read the loss scale, by which the gradient of the loss is multiplied, if there is
  // one.
  void add_loss_scale(Op& op) const;
  void backward(const Task& task);
  void joined_backward(const Task& task);
  // Adds the ops of a unit's pass (lowering_unit.cc), and the movement that follows the last one.
  struct Operands;
  void unit_pass(const Task& task, const std::vector<UnitStep>& steps);
  Operands operands_of(const Task& task, const std::vector<UnitStep>& steps);
  void add_activations(const Task& task, const std::vector<UnitStep>& steps, Operands& operands);
  void add_gradients(const Task& task, const std::vector<UnitStep>& steps, Operands& operands);
  Range between(const Task& task, const UnitAccess& access, Operands& operands);
  void compute_step(const Task& task, const UnitStep& step, Operands& operands);
  void exchange_step(const Task& task, const UnitStep& step, Operands& operands);
  void settle_forward(const Task& task);
  void settle_backward(const Task& task);
  Op compute_op(const Task& task);
  void main_op(Op op, const Task& task);
  static Mover::Labels labels(const Task& task, Account account) {
    return {task.unit, task.micro_batch, task.parts, account};
  }

  Range tokens_of(std::int32_t micro_batch) const;

  // --- parameters --------------------------------------------------------------------------------

  // Returns where this task finds the unit's parameters in the compute tier.
  Range parameters_for(std::int32_t unit);
  bool stays(std::int32_t unit, std::size_t use) const;
  std::size_t unit_bytes(std::int32_t unit) const;
  // Returns the index in uses_ of the unit's next use at or after this task, or the number of uses
  // if there is none.
  std::size_t next_use(std::int32_t unit) const;
  BufferId parameter_buffer(std::int32_t unit);
  BufferId load_parameters(std::int32_t unit, std::size_t use);
  Load new_load(std::int32_t earliest, std::size_t target_bytes) const;

  // --- activations -------------------------------------------------------------------------------

  // Activations of a forward, by its number.
  Activation& hidden(std::int32_t forward) { return hidden_.at(index(forward)); }
  Activation& saved(std::int32_t forward) { return saved_.at(index(forward)); }
  BufferId& hidden_gradient(std::int32_t forward) { return hidden_gradient_.at(index(forward)); }
  static std::size_t index(std::int32_t number) { return static_cast<std::size_t>(number); }
  // Called at the last use of a unit's input.
  void release_input(const Task& task);

  Tier home_of_activations(std::int32_t unit) const;
  // Make the buffer for a forward's output or its gradient, and for the activations that a task's
  // forward saves.
  BufferId hidden_buffer(const char* what, std::int32_t forward);
  BufferId saved_buffer(const Task& task);

  // Returns whether the unit's backward, or the recomputation for it, needs the unit's input.
  bool needs_input_again(std::int32_t unit) const;
  // Returns the task of the backward pass that first needs what this forward task leaves; none if
  // the forward has no backward.
  std::optional<std::int32_t> needed_again(const Task& task) const;
  std::int32_t short_gap(std::int32_t unit) const {
    return policy_.homes.at(unit).activations_named ? 0 : kShortGap;
  }

  void send_away(Activation& activation, const BufferKey& key, const Task& task);
  Range brought_back(Activation& activation, const Task& task);
  // --- gradients ---------------------------------------------------------------------------------

  // Returns whether the unit's gradients are summed over micro-batches on the host. In micro-batch-
  // major order they are, if their home is not on the device. The tied embedding's gradient is
  // unfinished from the head to the embedding's own backward, and stays in the compute tier.
  bool sums_on_host(std::int32_t unit) const;
  std::size_t gradient_bytes(std::int32_t unit) const {
    return static_cast<std::size_t>(model_.units.at(unit).trained_elements()) * sizeof(float);
  }

  // Returns whether the gradient of each micro-batch is reduced over ranks by itself, and this
  // rank's parts are summed.
  bool sums_shards(std::int32_t unit) const;

  // Returns the gradient's buffer in the compute tier, and makes it if there is none.
  Range compute_gradient(std::int32_t unit);

  // Return whether this task is the first, or the last, that adds to the gradient of its unit.
  bool begins_gradient(std::int32_t unit) const { return gradient_tasks_.at(unit).first == now_; }
  bool ends_gradient(std::int32_t unit) const { return gradient_tasks_.at(unit).last == now_; }
  // Called after a task has added to a gradient: adds it to the sum on the host, if there is one,
  // and sends a finished gradient home.
  void settle_gradient(std::int32_t unit, std::int32_t micro_batch);
  void accumulate_on_host(Mover& mover, const Range& part, const Range& sum, std::int64_t chunk);
  Range compute_gradient_chunk(std::int32_t unit, std::int64_t chunk);

  void settle_shards(std::int32_t unit, std::int32_t micro_batch);
  // Returns where the shards of a chunk are summed: in their home, if that is in memory.
  Range shard_sum(std::int32_t unit, std::int64_t chunk);
  void accumulate(Mover& mover, const Range& part, const Range& sum, std::int64_t chunk);

  // Takes the norm of a gradient whose whole sum is in the compute tier, and sends it home.
  void finish_gradient(std::int32_t unit);

  // They run where the gradient is: on the update lane for host memory, on the compute lane for the
  // device's.
  void add_norm_partials(Mover& mover, std::int32_t unit, std::int64_t chunk, const Range& part);
  void norm_finish();
  void step_scalars();
  void scalars_to_device();

  // --- updates -----------------------------------------------------------------------------------

  void update(const Task& task);
  // Returns `home`, or a copy of it in tier `where`.
  Range brought(const Mover::Labels& labels, std::int32_t chunk, const Range& home, Tier where,
                std::int32_t earliest = 0);
  Load load_to(Tier where, const Range& home, std::int32_t earliest,
               std::size_t target_bytes) const;

  // Two places in device memory for optimizer state that has its home elsewhere. Chunks pass
  // through them in turn: while one chunk is updated, the next one comes and the one before leaves.
  struct StatePlace {
    BufferId buffer = kNoBuffer;
    std::int32_t free_from = 0;  // task
  };
  struct StateStream {
    std::array<StatePlace, 2> places;
    std::size_t chunks = 0;  // that have passed
  };
  Range streamed_state(const Task& task, const Homes& homes);
  // Returns the bytes of the largest chunk of the units whose updates are deferred, or of the
  // others.
  std::size_t largest_streamed_chunk(const Homes& homes, bool deferred) const;

  // Where the update writes a chunk's parameters, and reads them if its rule does. That is their
  // home, if it is in the same memory.
  struct UpdatedParameter {
    Range home;     // `updated` is copied back here
    Range updated;  // as large as the home; the home itself if no copy is made
    Range own;      // the part of `updated` that this rank updates
    // Every rank has the whole parameters and updates a part. Then the parts are gathered, in the
    // home or before they go there.
    bool is_divided = false;
    bool gathers_at_home = false;
  };
  UpdatedParameter updated_parameter(const Task& task, Tier where);
  bool updates_in_place(const Task& task, Tier where) const;
  Range updated_elsewhere(const Task& task, const Range& home, Tier where);
  void settle_parameter(const Task& task, const UpdatedParameter& parameter);
  // Returns the place in the compute tier where the task before has used them, or where the next
  // use will find them.
  Range updated_in_place(const Task& task, const Range& home);
  // Loads the unit's frozen parameters for the step's next use, next to those that train.
  void load_frozen(const Task& task, BufferId target);
  // Returns the labels of movement that both the update and the step's next use of the parameters
  // need.
  static Mover::Labels labels_of_both(const Task& task) {
    return {task.unit, -1, task.is_deferred() ? kOfBothSteps : kOfThisStep, Account::kParameters};
  }
  // Returns whether the unit's parameters were fetched for the task right before its update.
  bool just_used(const Task& task) const;
  std::size_t offset_in_unit(const Task& task) const {
    return static_cast<std::size_t>(model_.chunk_begin(task.unit, task.chunk)) *
           model_.parameter_bytes();
  }

  void store_back(const Task& task, const Range& range, const Range& home, Account account);

  // --- several ranks -----------------------------------------------------------------------------

  // Returns this rank's part of a range that holds a whole chunk.
  Range own_shard(const Range& whole) const;
  // Gathers the parts of all ranks; `own` may lie in `whole`.
  void gather(Mover& mover, const Range& own, const Range& whole, std::int32_t chunk);
  void gather_updated(const Task& task, const Range& own, const Range& whole);
  // Returns a finished chunk in the gradient's type: the chunk itself, or a rounded copy. The copy
  // is the chunk's home, if the home has whole chunks in the same memory.
  Range rounded(Mover& mover, std::int32_t unit, std::int64_t chunk, const Range& whole);
  // Returns the sum over ranks of a chunk's finished gradient: all of it with ZeRO stage 0, this
  // rank's part with the other stages, in its home if that is in the same memory. With one rank it
  // is the gradient.
  Range reduce_finished(Mover& mover, std::int32_t unit, std::int64_t chunk, const Range& whole);
  Range reduce_to(Mover& mover, const Range& whole, const Range& part, std::int32_t chunk);
  Range reduce(Mover& mover, std::int32_t unit, std::int64_t chunk, const Range& whole);
  void gather_sums();

  // --- between tensor-parallel ranks
  // --------------------------------------------------------------

  Range own_rows(BufferId buffer) const { return {buffer, 0, model_.hidden_bytes}; }
  void tensor_op(OpKind kind, const Task& task, const Range& source, const Range& target);
  // Returns the rows of all ranks, gathered from each rank's own ones. Without sequence parallelism
  // it returns `own`.
  Range gather_rows(const Task& task, const Range& own);
  // Adds up over ranks the elements of a finished gradient's chunk that each rank has a share of.
  void reduce_summed(Mover& mover, std::int32_t unit, std::int64_t chunk, const Range& whole);

  // --- pipeline stages ---------------------------------------------------------------------------

  // Places that receive hidden states or their gradients. They share memory with nothing else.
  // Otherwise a receive could wait for other bytes to leave its place, these bytes could be on
  // their way to a stage that waits in the same way, and both would wait forever.
  struct Slots {
    const char* name = "";
    BufferKind kind = BufferKind::kOther;
    std::vector<BufferId> all;
    std::vector<BufferId> free;  // the longest free first
  };
  BufferId take_slot(Slots& slots);
  // Called with every buffer whose content has had its last use. Ignores buffers that are no slots.
  void release_slot(Slots& slots, BufferId buffer);
  void pass_message(const Task& task);
  static Op message_op(const Task& task, const Range& range, Account account);
  void pass_hidden(const Task& task);
  void pass_tied_gradient(const Task& task);
  // Send the first stage's updated embedding to the head's copy of it, and receive it there.
  void send_updated(const Task& task, const Range& own);
  void receive_updated(const Task& task);

  const StepModel& model_;
  const StepPolicy& policy_;
  const std::vector<Task>& tasks_;
  Tier compute_;
  Draft draft_;
  SharedBuffers shared_;
  Homes parameters_;
  std::vector<Homes> update_states_;  // that only updates read and write
  std::optional<Homes> gradients_;
  std::vector<std::vector<std::int32_t>> uses_;
  // By the number of a forward: the task that computes it or receives its output, and the first
  // task that needs again what it left; -1: none.
  std::vector<std::int32_t> producer_;
  std::vector<std::int32_t> again_at_;
  std::vector<std::int32_t>
      joined_forwards_;  // by micro-batch: of the unit whose backward joins them
  struct GradientTasks {
    std::int32_t first = -1;
    std::int32_t last = -1;
  };
  std::vector<GradientTasks> gradient_tasks_;  // by unit
  std::vector<std::int64_t> first_partials_;   // by unit: StepModel::first_partial()
  std::int32_t last_loss_ = -1;                // the last task that writes a loss
  std::int32_t now_ = 0;
  std::int32_t step_of_unit_ = 0;  // while a unit's pass is lowered
  std::vector<std::optional<Instance>> instances_;
  // Per unit, the first chunks, which an update has left on the host on their way to NVMe: the next
  // load takes them from there.
  std::vector<std::vector<Range>> updated_on_host_;
  std::vector<Activation> hidden_;
  std::vector<BufferId> hidden_gradient_;
  std::vector<Activation> saved_;
  Slots hidden_slots_{"received hidden", BufferKind::kReceivedHidden, {}, {}};
  Slots gradient_slots_{"received hidden grad", BufferKind::kReceivedHiddenGradient, {}, {}};
  std::vector<BufferId> gradient_;  // of each unit, in the compute tier until it is home
  std::vector<BufferId> sum_;       // of each unit, on the host before it goes to NVMe
  // By unit: the task that finished the gradient, and the task that updated it; -1: not yet.
  std::vector<std::int32_t> finished_at_;
  std::vector<std::int32_t> updated_at_;
  // One for updates under the backward and one for deferred updates, which use space at different
  // times.
  ByStateClass<std::array<StateStream, 2>> state_streams_;
};

}  // namespace terrace
