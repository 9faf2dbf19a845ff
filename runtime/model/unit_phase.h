#pragma once

#include <cstdint>
#include <string_view>

namespace terrace {

// Which part of a unit's forward, backward or head a compute op is. Ranks that share a unit
// exchange what its products make between one phase and the next (docs/tensor.md).
enum class UnitPhase : std::uint8_t {
  kWhole,      // all of it: the rank has the unit for itself
  kLookup,     // of the embedding: its tokens' rows
  kPositions,  // and the positions'
  kNorm1,      // of a block, in this order; backward the other way
  kAttention,
  kNorm2,
  kMlp,
  kResidual,
  kHeadNorm,  // of the head
  kHeadSums,
  kHeadLoss,
  kHeadNormBackward,
};
// "" of the whole.
std::string_view name_of(UnitPhase phase);

}  // namespace terrace
