#pragma once

#include <cstdint>
#include <vector>

#include "memory/tier.h"

namespace terrace {

// A step on the way home of a gradient's chunk, from the end of its sum over micro-batches on.
// Another value that is summed and goes home, such as a sum of differences, is another list of
// these steps.
enum class RecipeStep : std::uint8_t {
  kSumOverTensorRanks,  // the elements that each tensor-parallel rank has a share of
  kNoisePartials,       // of each data-parallel rank's own sum, for the gradient noise scale
  kRound,               // to the type that gradients have between ranks and at home
  kSumOverDataRanks,    // with ZeRO stages 1 to 3 only this rank's part of the sum is kept
  kToHost,
  kNormPartials,
  kToHome,
};
using GradientRecipe = std::vector<RecipeStep>;

// Where a sum over micro-batches is when it is finished.
enum class SumPlace : std::uint8_t {
  kCompute,       // whole, in the compute tier
  kHost,          // whole, on the host
  kReducedParts,  // added over ranks already, this rank's parts
};

// Returns the recipe of a gradient. The norm is taken where the gradient is in memory for the last
// time before it is at home, or at home if that is in memory: on the host where it goes to a drive.
GradientRecipe gradient_recipe(SumPlace sum, Tier home, Tier compute);

}  // namespace terrace
