#include "offload/block_checksums.h"

#include <algorithm>

#include "base/bytes.h"
#include "base/check.h"
#include "base/hash.h"
#include "offload/block_store.h"

namespace terrace {

BlockChecksums::BlockChecksums(bool enabled, std::size_t block_bytes)
    : enabled_(enabled), sums_per_block_(divide_up(block_bytes, kChecksumBytes)) {}

void BlockChecksums::resize(std::size_t blocks) {
  sums_.resize(enabled_ ? blocks * sums_per_block_ : 0);
  written_.resize(blocks);
}

std::size_t BlockChecksums::place_of(std::size_t block, std::size_t first) const {
  TERRACE_CHECK_EQ(first % kChecksumBytes, 0U);
  return block * sums_per_block_ + first / kChecksumBytes;
}

void BlockChecksums::take(std::size_t block, std::size_t first, std::span<const std::byte> bytes) {
  if (!enabled_) return;
  for (std::size_t place = place_of(block, first); !bytes.empty(); ++place) {
    const std::size_t size = std::min(kChecksumBytes, bytes.size());
    sums_[place] = hash_bytes(bytes.first(size));
    bytes = bytes.subspan(size);
  }
}

bool BlockChecksums::are_same(std::size_t block, std::size_t first,
                              std::span<const std::byte> bytes) const {
  if (!enabled_) return true;
  for (std::size_t place = place_of(block, first); !bytes.empty(); ++place) {
    const std::size_t size = std::min(kChecksumBytes, bytes.size());
    if (sums_[place] != hash_bytes(bytes.first(size))) return false;
    bytes = bytes.subspan(size);
  }
  return true;
}

}  // namespace terrace
