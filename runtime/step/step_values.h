#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "runtime/step/program.h"

namespace terrace {

// Checks that every op finds values of the right training step. A body has ops of two steps: its
// deferred ops finish step s - 1, all others are of step s. An op that computes writes values of
// its own step. Copies and collectives pass on the step of the values that they read. Then
//  * tokens, activations, gradients, losses, norm partials and the scalars of updates must be of
//    the op's own step,
//  * parameters, optimizer state, the loss scale and the errors of codes must be as the step before
//    has left them.
// The body is taken three times. So a value that a step leaves is followed through a copy that the
// next step makes to an op of the step after that. Values that were there before the first body are
// taken as right. Returns what is wrong, one sentence each, at most `limit`.
std::vector<std::string> check_step_values(const Program& program, std::size_t limit);

}  // namespace terrace
