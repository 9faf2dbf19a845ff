#pragma once

#include <cstdint>

// The flat sequence of a unit's parameters. It is stored, moved, reduced and updated as one.
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

// How a unit's backward relates to its forward. A block's backward is separate, one op for each
// micro-batch. An embedding's is one op for all micro-batches, at the end of a step. A head's is
// one op together with the forward and the loss.
enum class UnitKind : std::uint8_t { kEmbedding, kBlock, kHead };

// Elements of a unit's flat sequence.
struct ElementSpan {
  std::int64_t begin = 0;
  std::int64_t end = 0;

  bool empty() const { return begin >= end; }
  friend bool operator==(const ElementSpan&, const ElementSpan&) = default;
};

}  // namespace terrace
