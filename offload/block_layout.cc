#include "offload/block_layout.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <numeric>

#include "base/bytes.h"
#include "base/check.h"

namespace terrace {

namespace {

// Returns the turns of a round, with each stripe's turns as far apart as possible: the next turn
// goes to the stripe that is furthest behind its share.
std::vector<std::size_t> turns_of(const StripeShares& shares) {
  const auto sum = std::accumulate(shares.begin(), shares.end(), std::int64_t{0});
  std::vector<std::int64_t> behind(shares.size());
  std::vector<std::size_t> turns;
  for (std::int64_t turn = 0; turn < sum; ++turn) {
    for (std::size_t i = 0; i < shares.size(); ++i) behind[i] += shares[i];
    const auto next = std::max_element(behind.begin(), behind.end());
    *next -= sum;
    turns.push_back(static_cast<std::size_t>(next - behind.begin()));
  }
  return turns;
}

// Reduces shares to lowest terms, so that equal shares are the same however they are written.
StripeShares reduced(StripeShares shares) {
  std::uint32_t divisor = 0;
  for (const std::uint32_t share : shares) divisor = std::gcd(divisor, share);
  for (std::uint32_t& share : shares) share /= divisor;
  return shares;
}

}  // namespace

BlockLayout::BlockLayout(const Shape& shape) : shape_(shape), stripe_bytes_(shape.shares.size()) {
  TERRACE_CHECK(std::has_single_bit(shape.block_bytes));
  TERRACE_CHECK(std::has_single_bit(shape.alignment));
  TERRACE_CHECK(std::has_single_bit(shape.spacing));
  TERRACE_CHECK_LE(shape.alignment, shape.block_bytes);
  TERRACE_CHECK(!shape.shares.empty());
  for (const std::uint32_t share : shape.shares) TERRACE_CHECK_LT(0U, share);
  turns_ = turns_of(reduced(shape.shares));
  std::vector<std::size_t> counts(shape.shares.size());
  for (const std::size_t stripe : turns_) {
    in_turns_.insert(in_turns_.end(), counts.begin(), counts.end());
    ++counts[stripe];
  }
  in_turns_.insert(in_turns_.end(), counts.begin(), counts.end());
}

std::size_t BlockLayout::blocks_before(std::size_t number, std::size_t stripe) const {
  const std::size_t stripes = shape_.shares.size();
  const std::size_t of_a_round = in_turns_[turns_.size() * stripes + stripe];
  return number / turns_.size() * of_a_round + in_turns_[number % turns_.size() * stripes + stripe];
}

ExtentId BlockLayout::add(std::size_t size_bytes) {
  TERRACE_CHECK_LT(0U, size_bytes);
  const ExtentId id{static_cast<std::uint32_t>(extents_.size())};
  const std::size_t bytes = round_up(size_bytes, shape_.alignment);
  // The turns go on from extent to extent. Otherwise all extents that have only one block would lie
  // in the first directory.
  extents_.push_back({.bytes = bytes, .first_number = blocks_});
  starts_.insert(starts_.end(), stripe_bytes_.begin(), stripe_bytes_.end());
  const std::size_t blocks = divide_up(bytes, shape_.block_bytes);
  blocks_ += blocks;
  for (std::size_t block = 0; block < blocks; ++block) {
    const Place at = place(id, block);
    stripe_bytes_[at.stripe] += at.bytes;
  }
  for (std::uint64_t& end : stripe_bytes_) end = round_up(end, shape_.spacing);
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
  const std::size_t number = facts.first_number + block_in_extent;
  const std::size_t stripe = turns_[number % turns_.size()];
  const std::size_t before =  // blocks of this extent in this stripe
      blocks_before(number, stripe) - blocks_before(facts.first_number, stripe);
  return {
      .stripe = stripe,
      .offset = starts_[extent.index * shape_.shares.size() + stripe] + before * shape_.block_bytes,
      .bytes = std::min(shape_.block_bytes, facts.bytes - begin),
      .number = number};
}

std::size_t BlockLayout::used_bytes() const {
  return std::accumulate(stripe_bytes_.begin(), stripe_bytes_.end(), std::size_t{0});
}

}  // namespace terrace
