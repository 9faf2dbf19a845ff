#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

// Offsets in one arena for buffers whose times of life are known in advance (dynamic storage
// allocation, offline).
namespace terrace {

// Half-open: [begin, end) in whatever unit of time the caller counts.
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

// Two items that live at the same time never overlap. Deterministic. Tries the order of time, as an
// allocator would place them; where that is not the lower bound, several greedy orders (by length
// of life, by size, by area, by how full the arena is then) with the lowest and the tightest fit,
// repairs the best, and keeps the lowest; 20,000 items take less than a second. Sizes
// are rounded up to `alignment`. Items with a fixed offset stay there. A result of `enough_bytes`
// or less is taken at once: whoever only wants to know whether it fits need not wait for the
// lowest.
PackResult pack_intervals(std::span<const PackItem> items, std::size_t alignment,
                          std::size_t enough_bytes = 0);

// Whether they can be packed into so many bytes, as far as the same attempts find it: quick where
// there is room for the holes that the first of them leaves.
bool can_pack(std::span<const PackItem> items, std::size_t alignment, std::size_t bytes);

}  // namespace terrace
