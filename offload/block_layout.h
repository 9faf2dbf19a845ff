#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "offload/block_store.h"

namespace terrace {

// How many of every few blocks go to each stripe; each is 1 or more.
using StripeShares = std::vector<std::uint32_t>;

// The places of the blocks of extents. The stripes take turns, as often as their shares say, and
// each has its blocks one after another in its file. Only the last block of an extent may be
// shorter than a block.
class BlockLayout {
 public:
  struct Shape {
    std::size_t block_bytes = 0;  // a power of two, a multiple of `alignment`
    std::size_t alignment = 0;    // a power of two
    std::size_t spacing = 1;      // extents begin at multiples of it in each file; a power of two
    StripeShares shares = {1};    // by stripe
  };
  struct Place {
    std::size_t stripe = 0;
    std::uint64_t offset = 0;  // in the stripe's file
    std::size_t bytes = 0;
    std::size_t number = 0;  // the block's number, counted over all extents
  };

  explicit BlockLayout(const Shape& shape);

  ExtentId add(std::size_t size_bytes);

  // Returns the size of the extent, rounded up to the alignment.
  std::size_t extent_bytes(ExtentId extent) const;
  Place place(ExtentId extent, std::size_t block_in_extent) const;

  std::size_t block_count() const { return blocks_; }
  std::size_t used_bytes() const;
  std::span<const std::uint64_t> stripe_bytes() const { return stripe_bytes_; }

 private:
  struct Extent {
    std::size_t bytes = 0;
    std::size_t first_number = 0;
  };

  const Extent& extent_of(ExtentId extent) const;
  // Returns how many of the blocks with a lower number, over all extents, are the stripe's.
  std::size_t blocks_before(std::size_t number, std::size_t stripe) const;

  const Shape shape_;
  std::vector<std::size_t> turns_;     // the stripes of the first blocks; later blocks repeat them
  std::vector<std::size_t> in_turns_;  // the stripe's blocks before each turn, turn-major
  std::vector<Extent> extents_;
  std::vector<std::uint64_t> starts_;  // start of each extent in each stripe, extent-major
  std::vector<std::uint64_t> stripe_bytes_;
  std::size_t blocks_ = 0;
};

}  // namespace terrace
