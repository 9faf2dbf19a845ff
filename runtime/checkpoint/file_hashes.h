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

// Pieces are small enough that a data-parallel rank's shard of a chunk has few bytes more to read
// than its own, and large enough that a manifest is small: 16 bytes of text for each.
inline constexpr std::uint64_t kHashPieceBytes = kMiB;

// How a file is cut: a header, which is read by all who open the file, then equal pieces, of which
// the last may be shorter.
struct PieceHashes {
  std::uint64_t header_bytes = 0;
  std::uint64_t piece_bytes = kHashPieceBytes;
  std::vector<std::uint64_t> hashes;  // the header's first

  struct Piece {
    std::size_t index = 0;
    std::uint64_t begin = 0;  // bytes from the file's start
    std::uint64_t end = 0;
  };
  // The piece that has the byte at `offset` of a file of so many bytes; offset < size_bytes.
  Piece at(std::uint64_t offset, std::uint64_t size_bytes) const;
  // How many hashes a file of so many bytes has.
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
  // The bytes so far are the header. Once, before the first byte behind it.
  void end_header();
  void add(std::span<const std::byte> bytes);
  // After the last byte, once.
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
