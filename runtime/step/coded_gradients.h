#pragma once

#include <cstdint>

#include "runtime/step/homes.h"
#include "runtime/step/movement_state.h"

namespace terrace {

// Adds finished gradients up over data-parallel ranks by codes, and keeps what the codes lose, if
// the run does (StateClass::kErrors).
class CodedGradients {
 public:
  // Adds the homes of the errors to the draft. Borrows the state.
  explicit CodedGradients(MovementState& state)
      : state_(state), errors_(state.draft, state.model, state.policy, StateClass::kErrors) {}

  // Adds a chunk up, whose sum over micro-batches is `whole`, in fp32. This rank's part of the sum
  // goes to `target`, which is returned.
  Range reduce(Mover& mover, std::int32_t group, std::int64_t chunk, const Range& whole,
               const Range& target);

 private:
  MovementState& state_;
  const Homes errors_;  // none where errors are not kept
};

}  // namespace terrace
