#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace terrace {

// What every block was when it was last written: a sum for each kChecksumBytes of it
// (block_store.h). Blocks, and parts of a block that share no sum, are independent: different ones
// may be used by different threads at once; of one, calls are ordered by its requests.
class BlockChecksums {
 public:
  // Without `enabled` only whether a block has been written is known, and all bytes are the same.
  BlockChecksums(bool enabled, std::size_t block_bytes);

  void resize(std::size_t blocks);

  // Of bytes from `first` on in the block, a multiple of kChecksumBytes; they end at another or
  // where the block's content does. Before the bytes are handed to the device, so that what the
  // device does to them shows.
  void take(std::size_t block, std::size_t first, std::span<const std::byte> bytes);
  // Whether the bytes there are those that were taken.
  bool are_same(std::size_t block, std::size_t first, std::span<const std::byte> bytes) const;

  // A block may be read once a write of it has succeeded: what a failed write leaves is not known.
  void write_begins(std::size_t block) { contents_[block] = Content::kUnknown; }
  void write_succeeded(std::size_t block) { contents_[block] = Content::kWritten; }
  // Or once its content is said to be so many zeros, which are not on the device.
  void set_zero(std::size_t block, std::size_t size_bytes);
  bool is_known(std::size_t block) const { return contents_[block] != Content::kUnknown; }
  bool is_zero(std::size_t block) const { return contents_[block] == Content::kZero; }

 private:
  enum class Content : std::uint8_t { kUnknown, kWritten, kZero };

  std::size_t place_of(std::size_t block, std::size_t first) const;

  bool enabled_;
  std::size_t sums_per_block_;
  std::vector<std::uint64_t> sums_;
  std::vector<Content> contents_;
};

}  // namespace terrace
