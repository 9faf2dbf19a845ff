#include "parallel/shard.h"

#include <algorithm>

#include "base/check.h"

namespace terrace {

std::int64_t padded_chunk_elements(std::int64_t chunk_elements, int ranks) {
  return shard_elements(chunk_elements, ranks) * ranks;
}

std::int64_t shard_elements(std::int64_t chunk_elements, int ranks) {
  TERRACE_CHECK_LT(0, ranks);
  TERRACE_CHECK_EQ(chunk_elements % kShardBlock, 0);
  const std::int64_t blocks = chunk_elements / kShardBlock;
  return (blocks + ranks - 1) / ranks * kShardBlock;
}

ShardRange shard_range(std::int64_t chunk_elements, int rank, int ranks) {
  TERRACE_CHECK_LE(0, rank);
  TERRACE_CHECK_LT(rank, ranks);
  const std::int64_t count = shard_elements(chunk_elements, ranks);
  return {rank * count, count};
}

ShardRange shard_data_range(std::int64_t chunk_elements, int rank, int ranks) {
  const ShardRange padded = shard_range(chunk_elements, rank, ranks);
  const std::int64_t begin = std::min(padded.begin, chunk_elements);
  return {begin, std::min(padded.end(), chunk_elements) - begin};
}

int shard_owner(std::int64_t chunk_elements, std::int64_t element, int ranks) {
  TERRACE_CHECK_LE(0, element);
  TERRACE_CHECK_LT(element, chunk_elements);
  return static_cast<int>(element / shard_elements(chunk_elements, ranks));
}

std::int64_t UnitShards::chunks() const {
  TERRACE_CHECK_EQ(chunk_elements_max % kShardBlock, 0);
  return (unit_elements + chunk_elements_max - 1) / chunk_elements_max;
}

std::int64_t UnitShards::chunk_elements(std::int64_t chunk) const {
  TERRACE_CHECK_LE(0, chunk);
  TERRACE_CHECK_LT(chunk, chunks());
  return std::min(chunk_elements_max, unit_elements - chunk * chunk_elements_max);
}

std::int64_t UnitShards::elements() const {
  if (unit_elements == 0) return 0;
  const std::int64_t last = chunks() - 1;
  return chunk_offset(last) + shard_elements(chunk_elements(last), ranks);
}

std::int64_t UnitShards::chunk_offset(std::int64_t chunk) const {
  TERRACE_CHECK_LT(chunk, chunks());
  return chunk * shard_elements(chunk_elements_max, ranks);
}

ShardRange UnitShards::data_range(std::int64_t chunk, int rank) const {
  ShardRange range = shard_data_range(chunk_elements(chunk), rank, ranks);
  range.begin += chunk * chunk_elements_max;
  return range;
}

}  // namespace terrace
