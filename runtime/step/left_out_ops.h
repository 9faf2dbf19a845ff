#pragma once

#include <cstdint>
#include <limits>

#include "runtime/step/program.h"

// A program is compiled for some number of micro-batches, and a run of it may have fewer: the first
// ones. The run then leaves out the ops of the later micro-batches: their computation, the movement
// of their activations, and messages with hidden states between tensor-parallel ranks and pipeline
// stages. All other ops are as in a full run: parameters, gradients and updates move, and
// data-parallel ranks meet in the same collectives. The first micro-batch begins a gradient and
// later ones add to it, so the gradient has the bits of a program that was compiled for as many
// micro-batches as the run has. An op that is left out counts as done, takes no time and moves no
// bytes.
namespace terrace {

// As RunInput::micro_batches: the run has all micro-batches of its program.
inline constexpr std::int32_t kAllMicroBatches = std::numeric_limits<std::int32_t>::max();

// Returns whether a run with this number of micro-batches leaves an op out.
bool is_left_out(const Op& op, std::int32_t micro_batches);

}  // namespace terrace
