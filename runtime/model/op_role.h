#pragma once

#include <cstddef>
#include <cstdint>

namespace terrace {

// The role of a buffer in an op of a step.
enum class Role : std::uint8_t {
  kTokens,      // and targets, of one micro-batch or of all
  kParameters,  // of a group of a unit; numbered in compute
  kHidden,      // a unit's input
  kHiddenOut,   // a unit's output
  kSaved,       // what a unit's backward needs besides its input
  kWorkspace,
  kConstants,
  kGradient,           // of a group of a unit; numbered in compute
  kHiddenGradient,     // of a unit's output
  kHiddenGradientOut,  // of a unit's input
  kLosses,
  kLogits,   // of every row, for sampling
  kBetween,  // passes between two ops of a unit; numbered
  kPartials,
  kNoisePartials,  // norm partials of the gradient of a small batch
  kScalars,
  kLossScale,
  kState,
  kErrors,  // of a chunk of gradients, in an op that encodes it
  kSource,  // of copies and collectives
  kTarget,
  kSums,           // norm partials and losses of all ranks
  kKeyValues,      // a block's keys and values, side by side, kept for later rows
  kRouterSums,     // that a layer of experts leaves of a micro-batch (ComputeModel::router_sums)
  kAllRouterSums,  // of all layers in that micro-batch
};
inline constexpr std::size_t kRoleCount = 25;

}  // namespace terrace
