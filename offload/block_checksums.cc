#include "offload/block_checksums.h"

#include <algorithm>
#include <array>

#include "base/bytes.h"
#include "base/check.h"
#include "base/hash.h"
#include "offload/block_store.h"

namespace terrace {

BlockChecksums::BlockChecksums(bool enabled, std::size_t block_bytes)
    : enabled_(enabled), sums_per_block_(divide_up(block_bytes, kChecksumBytes)) {}

void BlockChecksums::resize(std::size_t blocks) {
  sums_.resize(enabled_ ? blocks * sums_per_block_ : 0);
  contents_.resize(blocks);
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

void BlockChecksums::set_zero(std::size_t block, std::size_t size_bytes) {
  contents_[block] = Content::kZero;
  if (!enabled_) return;
  static constexpr std::array<std::byte, kChecksumBytes> kZeros{};
  static const std::uint64_t kSumOfZeros = hash_bytes(kZeros);
  std::size_t place = place_of(block, 0);
  for (std::size_t at = 0; at < size_bytes; at += kChecksumBytes, ++place) {
    const std::size_t size = std::min(kChecksumBytes, size_bytes - at);
    sums_[place] = size == kChecksumBytes ? kSumOfZeros : hash_bytes(std::span(kZeros).first(size));
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
