#pragma once

#include <cstdint>
#include <vector>

#include "runtime/step/movement_state.h"
#include "runtime/step/noise_sums.h"

namespace terrace {

// Adds the ops that compute the sums of squares of the gradient of a small batch, for the gradient
// noise scale. StepModel::measures_noise says which samples that batch has. These ops only read
// what training computes, so they change none of its bits.
class NoiseMovement {
 public:
  // Borrows the state.
  explicit NoiseMovement(MovementState& state);

  // Returns whether data-parallel ranks have a small batch each.
  bool takes_own() const { return state_.model.measures_noise && state_.model.zero.ranks > 1; }
  // Returns whether the present task completes the first micro-batch's gradient of a group, and the
  // small batch is that micro-batch.
  bool ends_first(std::int32_t micro_batch) const {
    return measures_first_micro_batch(state_.model) && micro_batch == 0;
  }
  // Adds the sums of squares of a chunk of the small batch's gradient.
  void take(Mover& mover, std::int32_t group, std::int64_t chunk, const Range& gradient);
  // Does the same before the ops that are added to the present task next.
  void take_before(std::int32_t group, std::int64_t chunk, const Range& gradient);
  // Copies the first micro-batch's gradient, all of a group, in the compute tier. At the end of the
  // step a backward that joins micro-batches adds to it.
  void keep_first(std::int32_t group, const Range& gradient);
  // Returns the copy; an empty range where there is none.
  Range kept(std::int32_t group) const;

 private:
  Op partials_op(std::int32_t group, std::int64_t chunk, const Range& gradient) const;
  void partials_to_host(Mover& mover, const Access& partials);

  MovementState& state_;
  std::vector<BufferId> kept_;  // by group
};

}  // namespace terrace
