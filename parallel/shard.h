#pragma once

#include <cstdint>

#include "kernels/kernel_table.h"

// Which part of a unit's flat sequence a data-parallel rank owns.
//
// A shard is an equal part of every chunk, a whole number of blocks of kShardBlock elements. A
// chunk is zero-padded to a multiple of `ranks` blocks first, so all shards of a chunk have the
// same size and the last ones may be padding only. Blocks keep the numbers that they have without
// padding, so what is counted by block (norms) does not depend on the number of ranks.
//
// All sizes and offsets are in elements. Chunks and units are whole numbers of blocks (their own
// padding is the layout's). Pure functions.
namespace terrace {

inline constexpr std::int64_t kShardBlock = kNormBlock;

struct ShardRange {
  std::int64_t begin = 0;
  std::int64_t count = 0;

  std::int64_t end() const { return begin + count; }
  friend bool operator==(const ShardRange&, const ShardRange&) = default;
};

// The chunk with its padding: what collectives move.
std::int64_t padded_chunk_elements(std::int64_t chunk_elements, int ranks);

// Of each rank, padding included.
std::int64_t shard_elements(std::int64_t chunk_elements, int ranks);

// Where the shard lies in the padded chunk.
ShardRange shard_range(std::int64_t chunk_elements, int rank, int ranks);

// The same without padding: shorter, or empty at the chunk's end, for the last ranks.
ShardRange shard_data_range(std::int64_t chunk_elements, int rank, int ranks);

// Whose shard has an element of the chunk.
int shard_owner(std::int64_t chunk_elements, std::int64_t element, int ranks);

// A unit of `unit_elements` in chunks of `chunk_elements_max` each, the last one shorter: the
// shards of its chunks one after the other are the rank's shard of the unit.
struct UnitShards {
  std::int64_t unit_elements = 0;
  std::int64_t chunk_elements_max = 0;
  int ranks = 1;

  std::int64_t chunks() const;
  std::int64_t chunk_elements(std::int64_t chunk) const;
  // Of the rank's shard of the unit, with padding.
  std::int64_t elements() const;
  // Where in it the shard of a chunk begins.
  std::int64_t chunk_offset(std::int64_t chunk) const;
  // Of a chunk, without padding, counted from the start of the unit.
  ShardRange data_range(std::int64_t chunk, int rank) const;
};

}  // namespace terrace
