#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/bytes.h"
#include "base/hash.h"

// Checksums of a file as a whole and in pieces, so that a part of it can be verified without the
// rest. All are XXH3, 64 bits.
namespace terrace {

// Pieces are small enough that a data-parallel rank reads few bytes besides its own shard of a
// chunk, and large enough that a manifest is small: each takes 16 bytes of text.
inline constexpr std::uint64_t kHashPieceBytes = kMiB;

// The hashes of a file that is cut into a header, which everybody who opens the file reads, and
// equal pieces; the last piece may be shorter.
struct PieceHashes {
  std::uint64_t header_bytes = 0;
  std::uint64_t piece_bytes = kHashPieceBytes;
  std::vector<std::uint64_t> hashes;  // the header's first

  struct Piece {
    std::size_t index = 0;
    std::uint64_t begin = 0;  // bytes from the file's start
    std::uint64_t end = 0;
  };
  // Returns the piece that has the byte at `offset` of a file of `size_bytes` bytes; offset <
  // size_bytes.
  Piece at(std::uint64_t offset, std::uint64_t size_bytes) const;
  // Returns the number of hashes that a file of `size_bytes` bytes has.
  static std::uint64_t count(std::uint64_t header_bytes, std::uint64_t piece_bytes,
                             std::uint64_t size_bytes);
};

struct FileHashes {
  std::uint64_t size_bytes = 0;
  std::uint64_t hash = 0;  // of the whole
  PieceHashes pieces;
};

// Hashes bytes as they are written, front to back. One thread.
class FileHasher {
 public:
  // Declares the bytes so far to be the header. Called once, before the first byte after it.
  void end_header();
  void add(std::span<const std::byte> bytes);
  // Returns the hashes. Called once, after the last byte.
  FileHashes finish();

 private:
  void end_piece();

  StreamingHash whole_;
  std::optional<StreamingHash> piece_;
  std::uint64_t in_piece_ = 0;  // bytes
  bool in_header_ = true;
  FileHashes result_;
};

}  // namespace terrace
