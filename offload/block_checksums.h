#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace terrace {

// The checksums of every block as it was last written: a sum for each kChecksumBytes of it
// (block_store.h). Blocks, and parts of a block that share no sum, are independent: different
// threads may use them at once. The calls for one of them are ordered by its requests.
class BlockChecksums {
 public:
  // Without `enabled`, the object knows only whether a block has been written, and are_same() is
  // true for all bytes.
  BlockChecksums(bool enabled, std::size_t block_bytes);

  void resize(std::size_t blocks);

  // Takes the checksums of the bytes from `first` on in the block. `first` is a multiple of
  // kChecksumBytes; the bytes end at another multiple, or where the block's content ends. Called
  // before the bytes are handed to the device, so that changes made by the device show.
  void take(std::size_t block, std::size_t first, std::span<const std::byte> bytes);
  // Returns whether the bytes there are the same as those that were taken.
  bool are_same(std::size_t block, std::size_t first, std::span<const std::byte> bytes) const;

  // A block may be read once a write of it has succeeded. The content after a failed write is
  // unknown.
  void write_begins(std::size_t block) { contents_[block] = Content::kUnknown; }
  void write_succeeded(std::size_t block) { contents_[block] = Content::kWritten; }
  // A block may also be read once its content is set to `size_bytes` zeros, which are not on the
  // device.
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
