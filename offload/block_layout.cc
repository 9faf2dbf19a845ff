#include "offload/block_layout.h"

#include <algorithm>
#include <bit>
#include <numeric>

#include "base/bytes.h"
#include "base/check.h"

namespace terrace {

BlockLayout::BlockLayout(const Shape& shape) : shape_(shape), stripe_bytes_(shape.stripes) {
  TERRACE_CHECK(std::has_single_bit(shape.block_bytes));
  TERRACE_CHECK(std::has_single_bit(shape.alignment));
  TERRACE_CHECK_LE(shape.alignment, shape.block_bytes);
}

ExtentId BlockLayout::add(std::size_t size_bytes) {
  TERRACE_CHECK_LT(0U, size_bytes);
  const ExtentId id{static_cast<std::uint32_t>(extents_.size())};
  const std::size_t bytes = round_up(size_bytes, shape_.alignment);
  // Extents of one block would otherwise all lie in the first directory.
  const std::size_t first_stripe = blocks_ % shape_.stripes;
  extents_.push_back({.bytes = bytes, .first_number = blocks_, .first_stripe = first_stripe});
  starts_.insert(starts_.end(), stripe_bytes_.begin(), stripe_bytes_.end());
  const std::size_t blocks = divide_up(bytes, shape_.block_bytes);
  blocks_ += blocks;
  for (std::size_t block = 0; block < blocks; ++block) {
    const Place at = place(id, block);
    stripe_bytes_[at.stripe] += at.bytes;
  }
  return id;
}

const BlockLayout::Extent& BlockLayout::extent_of(ExtentId extent) const {
  TERRACE_CHECK_LT(extent.index, extents_.size());
  return extents_[extent.index];
}

std::size_t BlockLayout::extent_bytes(ExtentId extent) const { return extent_of(extent).bytes; }

BlockLayout::Place BlockLayout::place(ExtentId extent, std::size_t block_in_extent) const {
  const Extent& facts = extent_of(extent);
  const std::size_t begin = block_in_extent * shape_.block_bytes;
  TERRACE_CHECK_LT(begin, facts.bytes);
  const std::size_t stripe = (facts.first_stripe + block_in_extent) % shape_.stripes;
  const std::size_t before = block_in_extent / shape_.stripes;  // of this extent, in this stripe
  return {.stripe = stripe,
          .offset = starts_[extent.index * shape_.stripes + stripe] + before * shape_.block_bytes,
          .bytes = std::min(shape_.block_bytes, facts.bytes - begin),
          .number = facts.first_number + block_in_extent};
}

std::size_t BlockLayout::used_bytes() const {
  return std::accumulate(stripe_bytes_.begin(), stripe_bytes_.end(), std::size_t{0});
}

}  // namespace terrace
