#include "parallel/shard.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/philox.h"

namespace terrace {
namespace {

constexpr std::int64_t kChunkMax = 16 * 1024 * 1024;

// Every size in blocks up to a few, and random ones up to a whole chunk.
std::vector<std::int64_t> chunk_sizes() {
  std::vector<std::int64_t> sizes;
  for (std::int64_t blocks = 1; blocks <= 20; ++blocks) sizes.push_back(blocks * kShardBlock);
  for (std::uint64_t i = 0; i < 30; ++i) {
    sizes.push_back((1 + philox({11}, {i, 0, 0})[0] % 4096) * kShardBlock);
  }
  sizes.push_back(kChunkMax);
  return sizes;
}

constexpr auto kRanks = {1, 2, 3, 4, 5, 7, 8, 16, 61, 512};

TEST(ShardTest, ShardsAreEqualWholeBlocksAndCoverThePaddedChunk) {
  for (const std::int64_t size : chunk_sizes()) {
    for (const int ranks : kRanks) {
      std::int64_t next = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        const ShardRange range = shard_range(size, rank, ranks);
        EXPECT_EQ(range.begin, next);
        EXPECT_EQ(range.count, shard_elements(size, ranks));
        EXPECT_EQ(range.count % kShardBlock, 0);
        next = range.end();
      }
      EXPECT_EQ(next, padded_chunk_elements(size, ranks));
      EXPECT_GE(next, size);
      EXPECT_LT(next - size, ranks * kShardBlock) << "more padding than needed";
    }
  }
}

TEST(ShardTest, DataWithoutPaddingIsTheChunkOnceAndOwnersAgree) {
  for (const std::int64_t size : chunk_sizes()) {
    for (const int ranks : kRanks) {
      std::int64_t next = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        const ShardRange data = shard_data_range(size, rank, ranks);
        EXPECT_EQ(data.begin, next);
        EXPECT_LE(data.count, shard_elements(size, ranks));
        if (data.count > 0) {
          EXPECT_EQ(data.begin, shard_range(size, rank, ranks).begin);
          EXPECT_EQ(shard_owner(size, data.begin, ranks), rank);
          EXPECT_EQ(shard_owner(size, data.end() - 1, ranks), rank);
        }
        next = data.end();
      }
      EXPECT_EQ(next, size);
    }
  }
}

TEST(ShardTest, OneRankHasTheChunkWithoutPadding) {
  EXPECT_EQ(padded_chunk_elements(5 * kShardBlock, 1), 5 * kShardBlock);
  EXPECT_EQ(shard_range(5 * kShardBlock, 0, 1), (ShardRange{0, 5 * kShardBlock}));
}

TEST(ShardTest, SmallChunksLeaveTheLastRanksPaddingOnly) {
  const std::int64_t size = 2 * kShardBlock;
  EXPECT_EQ(shard_elements(size, 3), kShardBlock);
  EXPECT_EQ(shard_data_range(size, 1, 3).count, kShardBlock);
  EXPECT_EQ(shard_data_range(size, 2, 3), (ShardRange{size, 0}));
}

TEST(ShardTest, ShardsOfAUnitLieBackToBack) {
  constexpr std::int64_t kSmallChunk = 10 * kShardBlock;
  for (const std::int64_t blocks : {1, 9, 10, 11, 20, 25, 47}) {
    for (const int ranks : kRanks) {
      const UnitShards unit = {blocks * kShardBlock, kSmallChunk, ranks};
      std::vector<int> owners(static_cast<std::size_t>(blocks), 0);
      for (int rank = 0; rank < ranks; ++rank) {
        std::int64_t next = 0;
        for (std::int64_t chunk = 0; chunk < unit.chunks(); ++chunk) {
          EXPECT_EQ(unit.chunk_offset(chunk), next);
          next += shard_elements(unit.chunk_elements(chunk), ranks);
          const ShardRange data = unit.data_range(chunk, rank);
          for (std::int64_t at = data.begin; at < data.end(); at += kShardBlock) {
            ++owners[static_cast<std::size_t>(at / kShardBlock)];
          }
        }
        EXPECT_EQ(unit.elements(), next);
      }
      EXPECT_TRUE(std::all_of(owners.begin(), owners.end(), [](int n) { return n == 1; }));
    }
  }
}

}  // namespace
}  // namespace terrace
