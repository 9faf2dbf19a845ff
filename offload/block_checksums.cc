#include "offload/block_checksums.h"

#include "base/hash.h"

namespace terrace {

void BlockChecksums::resize(std::size_t blocks) {
  sums_.resize(enabled_ ? blocks : 0);
  written_.resize(blocks);
}

void BlockChecksums::write_begins(std::size_t block, std::span<const std::byte> bytes) {
  written_[block] = 0;
  if (enabled_) sums_[block] = hash_bytes(bytes);
}

void BlockChecksums::write_succeeded(std::size_t block) { written_[block] = 1; }

BlockChecksums::Verdict BlockChecksums::judge(std::size_t block,
                                              std::span<const std::byte> bytes) const {
  if (written_[block] == 0) return Verdict::kNeverWritten;
  if (enabled_ && sums_[block] != hash_bytes(bytes)) return Verdict::kDifferent;
  return Verdict::kSame;
}

}  // namespace terrace
