#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "runtime/step/coded_gradients.h"
#include "runtime/step/gradient_recipe.h"
#include "runtime/step/movement_state.h"
#include "runtime/step/noise_movement.h"

namespace terrace {

// Sums the gradients of groups over micro-batches, where the sums live, and takes finished ones
// home. Several units may write the gradient of one group; it is summed in the order of these
// tasks.
class GradientMovement {
 public:
  // Adds the homes to the draft. Borrows the state.
  explicit GradientMovement(MovementState& state);

  // Where a pass writes the gradient of a group, and whether it adds to what is there.
  struct Target {
    Range range;
    bool adds = false;
  };
  // Returns that place. Called once for each pass that writes the gradient, by its first part that
  // does.
  Target target(const Task& task, std::int32_t group);
  // Returns the same for the gradient of the first micro-batch alone, which a backward that joins
  // micro-batches writes for the gradient noise scale, before it writes the gradient of all.
  Target first_target(std::int32_t group);
  // Called behind that backward.
  void settle_first(std::int32_t group);
  // Returns the range of a chunk of the gradient in the compute tier.
  Range in_compute(std::int32_t group, std::int64_t chunk);
  // Called behind a task that has written a gradient: adds it to the sum that is kept elsewhere, if
  // there is one, and sends a finished gradient home.
  void settle(std::int32_t group, std::int32_t micro_batch);
  // Called behind the last task before the norm's end: adds the norm partials that were held back.
  void add_late_partials();
  // Sends a chunk of the gradient to the pipeline stage of the group's owner, or receives it there.
  // It is not yet added over data-parallel ranks.
  void pass_borrowed(const Task& task);

  // Returns where a finished gradient is at home, as far as this rank updates it, and the first
  // task at which it is there.
  Range updated_part(std::int32_t group, std::int64_t chunk) const;
  std::int32_t ready_at(std::int32_t group) const { return finished_at_.at(group) + 1; }

 private:
  // The tasks that write a gradient: the first and the last, -1: none; and the first part of the
  // pass that the first is in.
  struct Writers {
    std::int32_t first_pass = -1;
    std::int32_t last = -1;
  };

  void note(const Task& task, std::int32_t number);
  void add_writer(std::int32_t group, const Task& task, std::int32_t number);
  // Return whether the present task is in the first pass that writes the gradient, or is the last
  // task that does.
  bool begins(const Task& task, std::int32_t group) const;
  bool ends(std::int32_t group) const { return writers_.at(group).last == state_.now; }

  // Returns whether the gradient is summed over micro-batches on the host. In micro-batch-major
  // order it is, if its home is not on the device. A gradient that is written once for all
  // micro-batches stays in the compute tier.
  bool sums_on_host(std::int32_t group) const;
  // Returns whether the gradient of each micro-batch is reduced over ranks by itself, and this
  // rank's parts are summed.
  bool sums_parts(std::int32_t group) const;
  bool joins_micro_batches(std::int32_t group) const;
  std::size_t group_bytes(std::int32_t group) const;

  // Returns the gradient's buffer in the compute tier, and makes it if there is none.
  Range whole_in_compute(std::int32_t group);
  void add_to_sum_on_host(std::int32_t group, std::int32_t micro_batch, bool first);
  // Returns where the parts of a chunk are summed: in their home, if that is in memory.
  Range sum_of_parts(std::int32_t group, std::int64_t chunk);
  void add_to_sum_of_parts(std::int32_t group, std::int32_t micro_batch, bool first);
  void accumulate(Mover& mover, const Range& part, const Range& sum, std::int64_t chunk);
  void finish(std::int32_t group);
  void take_first(std::int32_t group, const Range& whole);

  // Follow a recipe with a chunk.
  void follow(const GradientRecipe& recipe, Mover& mover, std::int32_t group, std::int64_t chunk,
              Range range);
  Range rounded(Mover& mover, std::int32_t group, std::int64_t chunk, const Range& whole);
  Range reduced(Mover& mover, std::int32_t group, std::int64_t chunk, const Range& whole);
  // Takes a finished chunk home, and returns where this rank's part of it is then.
  Range taken_home(Mover& mover, std::int32_t group, std::int64_t chunk, const Range& range);
  void add_norm_partials(Mover& mover, std::int32_t group, std::int64_t chunk, const Range& part);

  // A finished gradient on the device whose norm is taken at the end of the step.
  struct LatePartials {
    std::int32_t group = -1;
    std::int64_t chunk = 0;
    Range part;
  };

  MovementState& state_;
  const Homes homes_;
  CodedGradients coded_;
  std::vector<Writers> writers_;              // by group
  std::vector<std::int64_t> first_partials_;  // by group: StepModel::first_partial()
  std::vector<BufferId> buffers_;             // by group, in the compute tier until it is home
  std::vector<BufferId> sums_;                // by group, on the host before it goes to NVMe
  std::vector<std::int32_t> finished_at_;     // by group: the task that finished it; -1: not yet
  std::vector<LatePartials> late_partials_;
  NoiseMovement noise_;
};

}  // namespace terrace
