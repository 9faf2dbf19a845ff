#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "runtime/step/program.h"

namespace terrace {

// Checks that every op finds values of the training step that it needs them of. A body has ops of
// two steps: its deferred ops finish step s - 1, all others are of step s. Each op that computes
// writes values of its own step; copies and collectives pass on the step of what they read. Then
//  * tokens, activations, gradients, losses, norm partials and the scalars of updates must be those
//    of the op's own step,
//  * parameters, optimizer state and the loss scale must be what the step before has left.
// The body is taken three times, so that a value that a step leaves is followed through a copy that
// the next one makes to an op of the one after. What was there before the first is taken as right.
// Returns what is wrong, one sentence each, at most `limit`.
std::vector<std::string> check_step_values(const Program& program, std::size_t limit);

}  // namespace terrace
