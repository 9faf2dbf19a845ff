#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "offload/block_store.h"

namespace terrace {

// Where the blocks of extents lie: round-robin over the stripes, one after another in each stripe's
// file. Only the last block of an extent may be shorter than a block.
class BlockLayout {
 public:
  struct Shape {
    std::size_t block_bytes = 0;  // a power of two, a multiple of `alignment`
    std::size_t alignment = 0;    // a power of two
    std::size_t stripes = 1;
  };
  struct Place {
    std::size_t stripe = 0;
    std::uint64_t offset = 0;  // in the stripe's file
    std::size_t bytes = 0;
    std::size_t number = 0;  // of the block, counted over all extents
  };

  explicit BlockLayout(const Shape& shape);

  ExtentId add(std::size_t size_bytes);

  // The size of the extent, rounded up to the alignment.
  std::size_t extent_bytes(ExtentId extent) const;
  Place place(ExtentId extent, std::size_t block_in_extent) const;

  std::size_t block_count() const { return blocks_; }
  std::size_t used_bytes() const;
  std::span<const std::uint64_t> stripe_bytes() const { return stripe_bytes_; }

 private:
  struct Extent {
    std::size_t bytes = 0;
    std::size_t first_number = 0;
    std::size_t first_stripe = 0;
  };

  const Extent& extent_of(ExtentId extent) const;

  const Shape shape_;
  std::vector<Extent> extents_;
  std::vector<std::uint64_t> starts_;  // of each extent in each stripe, extent-major
  std::vector<std::uint64_t> stripe_bytes_;
  std::size_t blocks_ = 0;
};

}  // namespace terrace
