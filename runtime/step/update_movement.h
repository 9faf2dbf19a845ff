#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/step/gradient_movement.h"
#include "runtime/step/movement_state.h"
#include "runtime/step/parameter_movement.h"

namespace terrace {

// Adds the homes of all states that only updates use to the draft.
std::vector<Homes> add_update_states(MovementState& state);

// Brings what an update needs to where the optimizer state is updated, and takes it home again; and
// makes the scalars that updates read.
class UpdateMovement {
 public:
  // Borrows all but the homes, which add_update_states() has made.
  UpdateMovement(MovementState& state, std::vector<Homes> states, ParameterMovement& parameters,
                 const GradientMovement& gradients)
      : state_(state), states_(std::move(states)), parameters_(parameters), gradients_(gradients) {}

  // Adds the update of a chunk.
  void update(const Task& task);
  // Adds the scalars of this step's updates, if these do not wait for the norm.
  void step_scalars();
  // Adds the norm of all gradients, and the scalars of updates that wait for it.
  void norm_finish();

 private:
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
  // Returns the bytes of the largest chunk of the groups whose updates are deferred, or of the
  // others.
  std::size_t largest_streamed_chunk(const Homes& homes, bool deferred) const;
  void scalars_to_device();
  void gather_sums();

  MovementState& state_;
  const std::vector<Homes> states_;
  ParameterMovement& parameters_;
  const GradientMovement& gradients_;
  // One for updates under the backward and one for deferred updates, which use space at different
  // times.
  ByStateClass<std::array<StateStream, 2>> streams_;
};

}  // namespace terrace
