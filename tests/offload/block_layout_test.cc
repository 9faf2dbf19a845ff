#include "offload/block_layout.h"

#include <gtest/gtest.h>

#include <random>
#include <set>
#include <utility>
#include <vector>

#include "base/bytes.h"

namespace terrace {
namespace {

constexpr std::size_t kBlock = 64 * kKiB;
constexpr std::size_t kAlignment = 4 * kKiB;

BlockLayout layout_of(std::size_t stripes) {
  return BlockLayout({.block_bytes = kBlock, .alignment = kAlignment, .stripes = stripes});
}

TEST(BlockLayout, OnlyTheTailIsShort) {
  BlockLayout layout = layout_of(1);
  const ExtentId extent = layout.add(2 * kBlock + 5000);
  EXPECT_EQ(layout.extent_bytes(extent), 2 * kBlock + 8192);
  EXPECT_EQ(layout.place(extent, 0).bytes, kBlock);
  EXPECT_EQ(layout.place(extent, 1).offset, kBlock);
  EXPECT_EQ(layout.place(extent, 2).bytes, 8192U);
  EXPECT_EQ(layout.block_count(), 3U);
  EXPECT_EQ(layout.used_bytes(), 2 * kBlock + 8192);
}

TEST(BlockLayout, BlocksAlternateBetweenStripes) {
  BlockLayout layout = layout_of(3);
  const ExtentId extent = layout.add(7 * kBlock);
  for (std::size_t block = 0; block < 7; ++block) {
    EXPECT_EQ(layout.place(extent, block).stripe, block % 3);
    EXPECT_EQ(layout.place(extent, block).offset, block / 3 * kBlock);
  }
}

TEST(BlockLayout, SmallExtentsAreSpreadToo) {
  BlockLayout layout = layout_of(3);
  for (int i = 0; i < 9; ++i) layout.add(100);
  for (const std::uint64_t bytes : layout.stripe_bytes()) EXPECT_EQ(bytes, 3 * kAlignment);
}

// Places of random extents: aligned, inside the file, each byte of a file used exactly once.
TEST(BlockLayout, PlacesTileTheFiles) {
  for (const std::size_t stripes : {1, 2, 3, 5}) {
    BlockLayout layout = layout_of(stripes);
    std::mt19937_64 random(stripes);
    std::vector<ExtentId> extents;
    for (int i = 0; i < 60; ++i) extents.push_back(layout.add(1 + random() % (6 * kBlock)));
    std::set<std::pair<std::size_t, std::uint64_t>> units;
    std::set<std::size_t> numbers;
    for (const ExtentId extent : extents) {
      const std::size_t blocks = divide_up(layout.extent_bytes(extent), kBlock);
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
