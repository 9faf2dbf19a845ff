#include "memory/arena_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "base/bytes.h"

namespace terrace {
namespace {

using Items = std::vector<PackItem>;

PackItem item(std::size_t size_bytes, std::int64_t begin, std::int64_t end) {
  return {size_bytes, {{begin, end}}, std::nullopt};
}

bool meet(const PackItem& a, const PackItem& b) {
  for (const LifeInterval& x : a.live) {
    for (const LifeInterval& y : b.live) {
      if (std::max(x.begin, y.begin) < std::min(x.end, y.end)) return true;
    }
  }
  return false;
}

std::size_t live_at_most(const Items& items, std::size_t alignment) {
  std::size_t most = 0;
  for (const PackItem& at : items) {
    for (const LifeInterval& interval : at.live) {
      std::size_t live = 0;
      for (const PackItem& other : items) {
        for (const LifeInterval& life : other.live) {
          const bool alive = life.begin <= interval.begin && interval.begin < life.end;
          if (alive) live += round_up(other.size_bytes, alignment);
        }
      }
      if (interval.begin < interval.end) most = std::max(most, live);
    }
  }
  return most;
}

// Checks by brute force everything that the packer promises.
void expect_valid(const Items& items, std::size_t alignment, const PackResult& result) {
  ASSERT_EQ(result.offsets.size(), items.size());
  std::size_t end = 0;
  for (std::size_t i = 0; i < items.size(); ++i) {
    EXPECT_EQ(result.offsets[i] % alignment, 0U);
    EXPECT_EQ(result.offsets[i], items[i].fixed_offset.value_or(result.offsets[i]));
    const std::size_t size_i = round_up(items[i].size_bytes, alignment);
    const bool takes_room = size_i != 0 && meet(items[i], items[i]);
    if (takes_room) end = std::max(end, result.offsets[i] + size_i);
    for (std::size_t j = 0; j < i; ++j) {
      const std::size_t size_j = round_up(items[j].size_bytes, alignment);
      const bool overlap = result.offsets[i] < result.offsets[j] + size_j &&
                           result.offsets[j] < result.offsets[i] + size_i;
      if (overlap && meet(items[i], items[j])) ADD_FAILURE() << "items " << i << " and " << j;
    }
  }
  EXPECT_EQ(result.packed_bytes, end);
  EXPECT_EQ(result.live_bytes, live_at_most(items, alignment));
  EXPECT_LE(result.live_bytes, result.packed_bytes);
}

double ratio(const PackResult& result) {
  return static_cast<double>(result.packed_bytes) / static_cast<double>(result.live_bytes);
}

TEST(ArenaPlanTest, Nothing) {
  const PackResult result = pack_intervals({}, 64);
  EXPECT_TRUE(result.offsets.empty());
  EXPECT_EQ(result.packed_bytes, 0U);
  EXPECT_EQ(result.live_bytes, 0U);
}

TEST(ArenaPlanTest, ReusesWhatHasDied) {
  const Items items = {item(100, 0, 10), item(100, 10, 20), item(100, 20, 30)};
  const PackResult result = pack_intervals(items, 1);
  expect_valid(items, 1, result);
  EXPECT_EQ(result.packed_bytes, 100U);
}

TEST(ArenaPlanTest, RoundsSizesUp) {
  const Items items = {item(1, 0, 10), item(4097, 5, 12)};
  const PackResult result = pack_intervals(items, 4096);
  expect_valid(items, 4096, result);
  EXPECT_EQ(result.packed_bytes, 3 * 4096U);
  EXPECT_EQ(result.live_bytes, 3 * 4096U);
}

TEST(ArenaPlanTest, AlignmentNeedNotBeAPowerOfTwo) {
  const Items items = {item(10, 0, 4), item(11, 1, 5), item(12, 2, 6)};
  expect_valid(items, 12, pack_intervals(items, 12));
}

// One of the arena's two layers is free between the two lives of the first item.
TEST(ArenaPlanTest, UsesTheHoleInALife) {
  const Items items = {{50, {{0, 10}, {90, 100}}, std::nullopt},
                       {30, {{0, 5}, {95, 100}}, std::nullopt},
                       item(80, 10, 90)};
  const PackResult result = pack_intervals(items, 1);
  expect_valid(items, 1, result);
  EXPECT_EQ(result.packed_bytes, 80U);
}

TEST(ArenaPlanTest, ItemsWithoutSizeOrLifeTakeNothing) {
  const Items items = {item(0, 0, 10), item(100, 3, 3), {100, {}, std::nullopt}, item(8, 0, 10)};
  const PackResult result = pack_intervals(items, 1);
  EXPECT_EQ(result.live_bytes, 8U);
  EXPECT_EQ(result.offsets[3], 0U);
}

TEST(ArenaPlanTest, FixedItemsStay) {
  Items items = {item(100, 0, 10), item(50, 5, 15), item(70, 8, 20), item(30, 0, 20)};
  items[1].fixed_offset = 40;
  items[3].fixed_offset = 200;
  const PackResult result = pack_intervals(items, 10);
  expect_valid(items, 10, result);
}

TEST(ArenaPlanDeathTest, FixedItemsThatCollide) {
  Items items = {item(100, 0, 10), item(50, 5, 15)};
  items[0].fixed_offset = 0;
  items[1].fixed_offset = 50;
  EXPECT_DEATH(pack_intervals(items, 1), "broken invariant");
  items[1].fixed_offset = 100;
  expect_valid(items, 1, pack_intervals(items, 1));
  EXPECT_DEATH(pack_intervals(items, 64), "broken invariant");
}

TEST(ArenaPlanDeathTest, LivesThatAreNotAscending) {
  const Items items = {{8, {{10, 20}, {0, 5}}, std::nullopt}};
  EXPECT_DEATH(pack_intervals(items, 1), "broken invariant");
}

Items random_items(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  Items items(1 + random() % 80);
  const auto horizon = static_cast<std::int64_t>(2 + random() % 200);
  for (PackItem& item : items) {
    item.size_bytes = random() % 5000;
    std::int64_t at = static_cast<std::int64_t>(random()) % horizon;  // negative times too
    for (std::uint64_t lives = random() % 4; lives > 0; --lives) {
      const auto length = static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(horizon));
      item.live.push_back({at, at + length});
      at += length + static_cast<std::int64_t>(random() % 20);
    }
  }
  // Fixed items are stacked, so that they cannot collide.
  std::size_t top = 0;
  for (PackItem& item : items) {
    if (random() % 8 != 0) continue;
    item.fixed_offset = round_up(top, 64) + 64 * (random() % 40);
    top = *item.fixed_offset + round_up(item.size_bytes, 64);
  }
  return items;
}

TEST(ArenaPlanTest, RandomInstancesAreValidAndRepeat) {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE(seed);
    const Items items = random_items(seed);
    const PackResult result = pack_intervals(items, 64);
    expect_valid(items, 64, result);
    EXPECT_EQ(pack_intervals(items, 64).offsets, result.offsets);
    if (HasFailure()) return;
  }
}

// Items in the shape of a training step on one tier: buffers that live throughout, windows of equal
// size that slide over the layers, activations whose lives nest as a stack, scratch of random size
// and length, and state that lives from its last write to the end and from the beginning to its
// next read.
class StepProgram {
 public:
  StepProgram(std::uint64_t seed, std::int64_t layers, std::int64_t microbatches)
      : random_(seed), layers_(layers) {
    for (int i = 0; i < 50; ++i) add(random_size(4 * kMiB), 0, end_of(microbatches));
    for (std::int64_t m = 0; m < microbatches; ++m) add_microbatch(end_of(m));
    const std::int64_t end = end_of(microbatches);
    for (int i = 0; i < 20; ++i) {
      const auto slack = static_cast<std::int64_t>(random_() % 100);
      items_.push_back(
          {random_size(20 * kMiB), {{0, 10 + slack}, {end - 2 * slack - 1, end}}, std::nullopt});
    }
  }

  const Items& items() const { return items_; }

 private:
  static constexpr std::int64_t kTicks = 20;  // per layer and direction

  std::int64_t end_of(std::int64_t microbatches) const {
    return microbatches * 2 * layers_ * kTicks;
  }

  std::size_t random_size(std::size_t mean) { return mean / 4 + random_() % (mean * 3 / 2); }

  void add(std::size_t size_bytes, std::int64_t begin, std::int64_t end) {
    items_.push_back(item(size_bytes, begin, end));
  }

  void add_scratch(std::int64_t begin) {
    for (std::int64_t i = 0; i < 8; ++i) {
      const auto length = static_cast<std::int64_t>(1 + random_() % 6);
      add(random_size(8 * kMiB), begin + i, begin + i + length);
    }
  }

  void add_microbatch(std::int64_t begin) {
    const std::int64_t middle = begin + layers_ * kTicks;
    const std::int64_t last = middle + layers_ * kTicks;
    for (std::int64_t layer = 0; layer < layers_; ++layer) {
      const std::int64_t forward = begin + layer * kTicks;
      const std::int64_t backward = last - (layer + 1) * kTicks;
      add(50 * kMiB, std::max(begin, forward - 2 * kTicks), forward + kTicks);
      add(50 * kMiB, std::max(middle, backward - 2 * kTicks), backward + kTicks);
      add(50 * kMiB, backward, backward + kTicks + kTicks / 2);
      add(30 * kMiB, forward + 2, backward + kTicks / 2);
      add_scratch(forward);
      add_scratch(backward);
    }
  }

  std::mt19937_64 random_;
  const std::int64_t layers_;
  Items items_;
};

TEST(ArenaPlanTest, TrainingStepsPackWithinATenth) {
  for (std::uint64_t seed = 1; seed <= 4; ++seed) {
    const StepProgram program(seed, 6 + static_cast<std::int64_t>(seed) * 3, 2);
    const PackResult result = pack_intervals(program.items(), 4096);
    expect_valid(program.items(), 4096, result);
    EXPECT_LE(ratio(result), 1.1) << "seed " << seed;
  }
}

// A result that is enough is accepted as it is, and no accepted result is larger. A limit that
// cannot be met changes nothing.
TEST(ArenaPlanTest, StopsAtWhatIsEnough) {
  int stopped_early = 0;
  for (unsigned seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE(seed);
    const Items items = random_items(seed);
    const PackResult lowest = pack_intervals(items, 64);
    const std::size_t enough = lowest.packed_bytes + lowest.packed_bytes / 4;
    const PackResult quick = pack_intervals(items, 64, enough);
    expect_valid(items, 64, quick);
    EXPECT_LE(quick.packed_bytes, enough);
    stopped_early += quick.packed_bytes > lowest.packed_bytes ? 1 : 0;
    EXPECT_EQ(pack_intervals(items, 64, lowest.live_bytes).offsets, lowest.offsets);
  }
  EXPECT_GT(stopped_early, 0);
}

TEST(ArenaPlanTest, NestedLivesAndWindowsPackTight) {
  Items items;
  for (std::int64_t i = 0; i < 60; ++i) {
    items.push_back(item(100'000 + static_cast<std::size_t>(i % 3) * 77'777, i, 120 - i));
  }
  for (std::int64_t i = 0; i < 118; ++i) items.push_back(item(500'000, i, i + 3));
  const PackResult result = pack_intervals(items, 64);
  expect_valid(items, 64, result);
  EXPECT_LE(ratio(result), 1.02);
}

// Activations of many micro-batches, layer by layer: nearly all are alive in the middle. Only an
// attempt whose work does not grow with the number of live items finishes here.
TEST(ArenaPlanTest, AStackOfManyLivesIsTheLowerBound) {
  constexpr std::int64_t kCount = 200'000;
  Items items;
  for (std::int64_t i = 0; i < kCount; ++i) {
    items.push_back(item(4096 * static_cast<std::size_t>(1 + i % 3), i, 2 * kCount - i));
  }
  for (std::int64_t i = 0; i < 4; ++i) {  // from the last write to the end, and to the next read
    items.push_back({4096, {{0, 10 + i}, {2 * kCount - 20 - i, 2 * kCount}}, std::nullopt});
  }
  const PackResult result = pack_intervals(items, 4096);
  EXPECT_EQ(result.packed_bytes, result.live_bytes);
  EXPECT_EQ(result.live_bytes, std::size_t{4096} * 2 * kCount - 4096);  // from the stack alone
  EXPECT_TRUE(can_pack(items, 4096, result.live_bytes));
  EXPECT_FALSE(can_pack(items, 4096, result.live_bytes - 1));
}

TEST(ArenaPlanTest, WhatWasPackedCanBe) {
  EXPECT_TRUE(can_pack({}, 64, 0));
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE(seed);
    const Items items = random_items(seed);
    const PackResult result = pack_intervals(items, 64);
    EXPECT_TRUE(can_pack(items, 64, result.packed_bytes));
    if (result.live_bytes > 0) {
      EXPECT_FALSE(can_pack(items, 64, result.live_bytes - 1));
    }
    if (result.packed_bytes > result.live_bytes) {
      EXPECT_FALSE(can_pack(items, 64, result.packed_bytes - 1));
    }
  }
}

// Small enough for the sanitizers; the planner's largest programs are ten times this.
TEST(ArenaPlanTest, ManyItems) {
  const StepProgram program(9, 24, 4);
  ASSERT_LT(1900U, program.items().size());
  const PackResult result = pack_intervals(program.items(), 4096);
  EXPECT_LE(ratio(result), 1.1);
}

}  // namespace
}  // namespace terrace
