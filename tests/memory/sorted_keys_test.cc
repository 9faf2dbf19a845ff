#include "memory/sorted_keys.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

namespace terrace {
namespace {

std::vector<PlacedKey> all_of(const SortedKeys& keys) {
  std::vector<PlacedKey> all;
  keys.append_to(all);
  return all;
}

// Inserts more than a few blocks of keys, at random, ascending and descending, and does so twice,
// because cleared keys keep their memory.
TEST(SortedKeys, StayInOrderWhateverOrderTheyComeIn) {
  std::mt19937 random(7);
  SortedKeys keys;
  for (int round = 0; round < 6; ++round) {
    keys.clear();
    std::set<PlacedKey> expected;
    for (std::uint32_t i = 0; i < 3000; ++i) {
      const std::size_t offset = round % 3 == 0 ? random() % 1000 : round % 3 == 1 ? i : 3000 - i;
      keys.insert({offset, i});
      expected.insert({offset, i});
    }
    EXPECT_EQ(keys.size(), expected.size());
    EXPECT_TRUE(std::ranges::equal(all_of(keys), expected));
  }
}

TEST(SortedKeys, LookingEndsWhereItIsAskedTo) {
  SortedKeys keys;
  for (std::uint32_t i = 0; i < 1000; ++i) keys.insert({i, i});
  std::size_t looks = 0;
  const auto is_700 = [&](const PlacedKey& key) {
    ++looks;
    return key.first == 700;
  };
  EXPECT_TRUE(keys.any_of(is_700));
  EXPECT_EQ(looks, 701U);
  EXPECT_FALSE(keys.any_of([](const PlacedKey& key) { return key.first == 1000; }));
}

}  // namespace
}  // namespace terrace
