#include "runtime/tokenizer/bpe_merges.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <random>
#include <utility>
#include <vector>

namespace terrace {
namespace {

constexpr std::int32_t kBytes = 5;
constexpr std::int32_t kMerges = 500;

using Ids = std::vector<std::int32_t>;

// Joins ids by byte-pair encoding exactly as it is defined.
Ids joined_one_by_one(const std::vector<BpeMerge>& merges, Ids ids) {
  std::map<std::pair<std::int32_t, std::int32_t>, BpeMerge> by_pair;
  for (const BpeMerge& merge : merges) by_pair[{merge.left, merge.right}] = merge;
  for (;;) {
    const BpeMerge* best = nullptr;
    std::size_t place = 0;
    for (std::size_t i = 0; i + 1 < ids.size(); ++i) {
      const auto found = by_pair.find({ids[i], ids[i + 1]});
      if (found == by_pair.end()) continue;
      if (best != nullptr && best->rank <= found->second.rank) continue;
      best = &found->second;
      place = i;
    }
    if (best == nullptr) return ids;
    ids[place] = best->id;
    ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(place) + 1);
  }
}

// Draws merges of a vocabulary that begins with `bytes` ids, counted from `first`. Each merge makes
// a new id from two existing ones; some pairs come twice.
std::vector<BpeMerge> drawn_merges(std::int32_t first, std::int32_t bytes, std::int32_t count,
                                   std::mt19937& draw) {
  std::vector<BpeMerge> merges;
  std::int32_t next = first + bytes;
  // Low ids are drawn more often, so that most merges can happen.
  const auto drawn_id = [&] {
    const std::int32_t last = std::uniform_int_distribution(first, next - 1)(draw);
    return std::uniform_int_distribution(first, last)(draw);
  };
  while (std::ssize(merges) < count) {
    merges.push_back({.left = drawn_id(),
                      .right = drawn_id(),
                      .rank = static_cast<std::int32_t>(merges.size()),
                      .id = next});
    ++next;
  }
  return merges;
}

// Few ids are joined in another way than many, and low ids are looked up in another table.
TEST(BpeMerges, JoinsAsTheDefinitionSays) {
  std::mt19937 draw(7);
  for (const std::int32_t first : {0, 250, 100'000, BpeMerges::kIdMax - kBytes - kMerges + 1}) {
    const std::vector<BpeMerge> merges = drawn_merges(first, kBytes, kMerges, draw);
    const BpeMerges joins(merges);
    BpeMerges::Scratch scratch;
    for (std::size_t size = 0; size <= 140; ++size) {
      Ids ids;
      for (std::size_t i = 0; i < size; ++i) {
        ids.push_back(std::uniform_int_distribution(first, first + kBytes - 1)(draw));
      }
      Ids behind = {3, 3};  // what stands before is left alone
      behind.insert(behind.end(), ids.begin(), ids.end());
      joins.apply(behind, 2, scratch);
      Ids expected = joined_one_by_one(merges, ids);
      ASSERT_TRUE(size < 40 || expected.size() < size * 4 / 5) << "the test hardly joins";
      expected.insert(expected.begin(), {3, 3});
      ASSERT_EQ(behind, expected) << "from " << first << ", " << size << " ids";
    }
  }
}

TEST(BpeMerges, TakesTheLaterOfTwoMergesOfAPair) {
  const std::vector<BpeMerge> merges = {{1, 2, 0, 300}, {2, 3, 1, 301}, {1, 2, 2, 302}};
  BpeMerges::Scratch scratch;
  Ids ids = {1, 2, 3};
  BpeMerges(merges).apply(ids, 0, scratch);
  EXPECT_EQ(ids, (Ids{1, 301}));
}

TEST(BpeMerges, LeavesIdsAloneThatNoMergeHas) {
  BpeMerges::Scratch scratch;
  // The filter cannot tell the pair of this merge from the pair of the ids below.
  const std::vector<BpeMerge> merges = {{300, 308, 0, 301}};
  for (const std::size_t size : {2, 100}) {
    Ids ids(size, BpeMerges::kIdMax);
    const Ids before = ids;
    BpeMerges(merges).apply(ids, 0, scratch);
    EXPECT_EQ(ids, before);
    BpeMerges({}).apply(ids, 0, scratch);
    EXPECT_EQ(ids, before);
  }
}

// Joins by the largest rank, beside a lower one, at all places of few ids.
TEST(BpeMerges, TakesRanksUpToTheLargest) {
  constexpr auto kLast = static_cast<std::int32_t>(BpeMerges::kMergesMax) - 1;
  const std::vector<BpeMerge> merges = {{7, 8, kLast, 300}, {8, 300, kLast - 1, 301}};
  const BpeMerges joins(merges);
  BpeMerges::Scratch scratch;
  for (std::size_t place = 0; place + 3 <= 64; ++place) {
    Ids ids(64, 1);
    ids[place] = 8;
    ids[place + 1] = 7;
    ids[place + 2] = 8;
    const Ids expected = joined_one_by_one(merges, ids);
    EXPECT_EQ(expected[place], 301);
    joins.apply(ids, 0, scratch);
    EXPECT_EQ(ids, expected) << place;
  }
}

}  // namespace
}  // namespace terrace
