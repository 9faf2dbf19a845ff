#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

// Plans the offsets in one arena for buffers whose lifetimes are known in advance (dynamic storage
// allocation, offline).
namespace terrace {

// A half-open interval [begin, end), in whatever unit of time the caller counts.
struct LifeInterval {
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

struct PackItem {
  std::size_t size_bytes = 0;
  std::vector<LifeInterval> live;  // disjoint, ascending; the item keeps its offset in all of them
  std::optional<std::size_t> fixed_offset = std::nullopt;
};

struct PackResult {
  std::vector<std::size_t> offsets;  // one per item, multiples of the alignment
  std::size_t packed_bytes = 0;      // the end of the highest item that has a size and a life
  std::size_t live_bytes = 0;        // the largest sum of live items at any time: a lower bound
};

// Packs the items so that two that live at the same time never overlap. Deterministic. Tries the
// order of time first, as an allocator would place them. Where the result is not the lower bound,
// tries several greedy orders (by length of life, by size, by area, by how full the arena is then)
// with the lowest and the tightest fit, repairs the best result, and keeps the lowest. 20,000 items
// take less than a second. Sizes are rounded up to `alignment`. Items with a fixed offset stay
// there. A result of `enough_bytes` or less is accepted at once, so a caller that only wants to
// know whether the items fit need not wait for the lowest result.
PackResult pack_intervals(std::span<const PackItem> items, std::size_t alignment,
                          std::size_t enough_bytes = 0);

// Returns whether the items can be packed into `bytes`, as far as the same attempts find a way.
// Quick where there is room for the holes that the first attempt leaves.
bool can_pack(std::span<const PackItem> items, std::size_t alignment, std::size_t bytes);

}  // namespace terrace
