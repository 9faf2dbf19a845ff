#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace terrace {

// What every block was when it was last written. Blocks are independent: different ones may be used
// by different threads at once; of one block, calls are ordered by its requests.
class BlockChecksums {
 public:
  enum class Verdict : std::uint8_t { kSame, kDifferent, kNeverWritten };

  // Without `enabled` only whether a block has been written is known.
  explicit BlockChecksums(bool enabled) : enabled_(enabled) {}

  void resize(std::size_t blocks);

  // Before the bytes are handed to the device, so that what the device does to them shows.
  void write_begins(std::size_t block, std::span<const std::byte> bytes);
  // Only then may the block be read: what a failed write leaves is not known.
  void write_succeeded(std::size_t block);
  Verdict judge(std::size_t block, std::span<const std::byte> bytes) const;

 private:
  bool enabled_;
  std::vector<std::uint64_t> sums_;
  std::vector<std::uint8_t> written_;
};

}  // namespace terrace
