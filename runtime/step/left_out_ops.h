#pragma once

#include <cstdint>
#include <limits>

#include "runtime/step/program.h"

// A program is compiled for a number of micro-batches. One execution of it may have fewer: the
// first ones. It then leaves out the ops of the others: their computation, the movement of their
// activations, the collectives of tensor-parallel ranks on them, and their messages between
// pipeline stages. All other ops are as in a full execution: parameters, gradients and updates
// move, and data-parallel ranks meet in the same collectives. The first micro-batch begins a
// gradient and later ones add to it, so the gradient has the bits of a program that was compiled
// for the smaller number. An op that is left out counts as done, takes no time and moves no bytes.
// Bodies of ops do not see it.
namespace terrace {

// As RunInput::micro_batches: the run has all micro-batches of its program.
inline constexpr std::int32_t kAllMicroBatches = std::numeric_limits<std::int32_t>::max();

// Returns whether a run with this number of micro-batches leaves an op out.
bool is_left_out(const Op& op, std::int32_t micro_batches);

}  // namespace terrace
