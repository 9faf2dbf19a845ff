#pragma once

#include <cstdint>

// The flat sequence of a unit's parameters, which is what is stored, moved, reduced and updated.
namespace terrace {

// The grain of shards and of norm partials, in elements.
inline constexpr std::int64_t kBlockElements = 4096;
// The grain of extents, copies and optimizer calls, in elements: the same whatever the budgets.
inline constexpr std::int64_t kChunkElements = 16 * 1024 * 1024;

// Returns the length of a sequence of `elements` that is zero-padded to whole blocks, as many for
// each of `ranks` data-parallel ranks.
constexpr std::int64_t padded_elements(std::int64_t elements, std::int64_t ranks = 1) {
  const std::int64_t grain = ranks * kBlockElements;
  return (elements + grain - 1) / grain * grain;
}

// How a unit's backward stands to its forward: apart, one op for each micro-batch (a block); one op
// for all micro-batches at the end of a step (an embedding); or one op together with the forward
// and the loss (a head).
enum class UnitKind : std::uint8_t { kEmbedding, kBlock, kHead };

// Elements of a unit's flat sequence.
struct ElementSpan {
  std::int64_t begin = 0;
  std::int64_t end = 0;

  bool empty() const { return begin >= end; }
  friend bool operator==(const ElementSpan&, const ElementSpan&) = default;
};

}  // namespace terrace
