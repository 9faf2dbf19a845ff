#include "offload/block_layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <set>
#include <utility>
#include <vector>

#include "base/bytes.h"

namespace terrace {
namespace {

using ::testing::ElementsAre;

constexpr std::size_t kLayoutBlock = 64 * kKiB;
constexpr std::size_t kAlignment = 4 * kKiB;

BlockLayout layout_of(const StripeShares& shares) {
  return BlockLayout({.block_bytes = kLayoutBlock, .alignment = kAlignment, .shares = shares});
}

BlockLayout layout_of(std::size_t stripes) { return layout_of(StripeShares(stripes, 1)); }

TEST(BlockLayout, OnlyTheTailIsShort) {
  BlockLayout layout = layout_of(1);
  const ExtentId extent = layout.add(2 * kLayoutBlock + 5000);
  EXPECT_EQ(layout.extent_bytes(extent), 2 * kLayoutBlock + 8192);
  EXPECT_EQ(layout.place(extent, 0).bytes, kLayoutBlock);
  EXPECT_EQ(layout.place(extent, 1).offset, kLayoutBlock);
  EXPECT_EQ(layout.place(extent, 2).bytes, 8192U);
  EXPECT_EQ(layout.block_count(), 3U);
  EXPECT_EQ(layout.used_bytes(), 2 * kLayoutBlock + 8192);
}

TEST(BlockLayout, ExtentsBeginAtMultiplesOfTheSpacing) {
  BlockLayout layout({.block_bytes = kLayoutBlock,
                      .alignment = kAlignment,
                      .spacing = 4 * kAlignment,
                      .shares = {1, 1}});
  const ExtentId first = layout.add(2 * kLayoutBlock + 5000);
  EXPECT_EQ(layout.extent_bytes(first), 2 * kLayoutBlock + 8192);
  EXPECT_EQ(layout.place(first, 2).bytes, 8192U);
  const ExtentId second = layout.add(2 * kLayoutBlock);
  EXPECT_EQ(layout.place(second, 0).offset, kLayoutBlock);
  EXPECT_EQ(layout.place(second, 1).offset, kLayoutBlock + 4 * kAlignment);
  EXPECT_THAT(layout.stripe_bytes(),
              ElementsAre(2 * kLayoutBlock + 4 * kAlignment, 2 * kLayoutBlock));
}

TEST(BlockLayout, BlocksAlternateBetweenStripes) {
  BlockLayout layout = layout_of(3);
  const ExtentId extent = layout.add(7 * kLayoutBlock);
  for (std::size_t block = 0; block < 7; ++block) {
    EXPECT_EQ(layout.place(extent, block).stripe, block % 3);
    EXPECT_EQ(layout.place(extent, block).offset, block / 3 * kLayoutBlock);
  }
}

TEST(BlockLayout, SmallExtentsAreSpreadToo) {
  BlockLayout layout = layout_of(3);
  for (int i = 0; i < 9; ++i) layout.add(100);
  for (const std::uint64_t bytes : layout.stripe_bytes()) EXPECT_EQ(bytes, 3 * kAlignment);
}

TEST(BlockLayout, StripesTakeTurnsByTheirShares) {
  BlockLayout layout = layout_of(StripeShares{4, 2, 2});
  const ExtentId extent = layout.add(8 * kLayoutBlock);
  std::vector<std::size_t> stripes;
  for (std::size_t block = 0; block < 8; ++block) {
    stripes.push_back(layout.place(extent, block).stripe);
  }
  // 4:2:2 is 2:1:1, so the first stripe has every other turn.
  EXPECT_THAT(stripes, ElementsAre(0, 1, 2, 0, 0, 1, 2, 0));
  EXPECT_THAT(layout.stripe_bytes(),
              ElementsAre(4 * kLayoutBlock, 2 * kLayoutBlock, 2 * kLayoutBlock));
  EXPECT_EQ(layout.place(extent, 7).offset, 3 * kLayoutBlock);
}

TEST(BlockLayout, EveryRunOfBlocksIsNearItsShares) {
  const StripeShares shares = {16, 5, 9};
  BlockLayout layout = layout_of(shares);
  const ExtentId extent = layout.add(300 * kLayoutBlock);
  for (const std::size_t first : {0, 7, 100}) {
    for (const std::size_t length : {1, 4, 30, 77}) {
      std::vector<double> counts(shares.size());
      for (std::size_t block = first; block < first + length; ++block) {
        ++counts[layout.place(extent, block).stripe];
      }
      for (std::size_t stripe = 0; stripe < shares.size(); ++stripe) {
        const double part = static_cast<double>(length) * shares[stripe] / 30;
        EXPECT_NEAR(counts[stripe], part, 2) << first << ", " << length << ", " << stripe;
      }
    }
  }
}

// Checks the places of random extents: they are aligned and inside the file, and each byte of a
// file is used exactly once.
TEST(BlockLayout, PlacesTileTheFiles) {
  for (const StripeShares& shares :
       {StripeShares{1}, {1, 1}, {1, 1, 1}, {1, 1, 1, 1, 1}, {3, 1}, {1, 16, 7}}) {
    BlockLayout layout = layout_of(shares);
    std::mt19937_64 random(shares.size());
    std::vector<ExtentId> extents;
    for (int i = 0; i < 60; ++i) extents.push_back(layout.add(1 + random() % (6 * kLayoutBlock)));
    std::set<std::pair<std::size_t, std::uint64_t>> units;
    std::set<std::size_t> numbers;
    for (const ExtentId extent : extents) {
      const std::size_t blocks = divide_up(layout.extent_bytes(extent), kLayoutBlock);
      for (std::size_t block = 0; block < blocks; ++block) {
        const BlockLayout::Place place = layout.place(extent, block);
        ASSERT_EQ(place.offset % kAlignment, 0U);
        ASSERT_EQ(place.bytes % kAlignment, 0U);
        ASSERT_LE(place.offset + place.bytes, layout.stripe_bytes()[place.stripe]);
        ASSERT_TRUE(numbers.insert(place.number).second);
        for (std::size_t at = 0; at < place.bytes; at += kAlignment) {
          ASSERT_TRUE(units.emplace(place.stripe, place.offset + at).second);
        }
      }
    }
    EXPECT_EQ(units.size() * kAlignment, layout.used_bytes());
    EXPECT_EQ(numbers.size(), layout.block_count());
    EXPECT_EQ(*numbers.rbegin() + 1, layout.block_count());
  }
}

}  // namespace
}  // namespace terrace
