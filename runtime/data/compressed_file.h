#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace terrace {

// The bytes of a file from front to back. A file that is compressed by gzip or Zstandard, as its
// first bytes tell, is decompressed on the way. Several members or frames may follow each other.
class ByteStream {
 public:
  virtual ~ByteStream() = default;

  // Reads the next bytes, as many as are at hand, into `out` and returns how many; 0 at the end.
  // Throws IoError, and CorruptData where compressed bytes are damaged or end too early.
  virtual std::size_t read(std::span<std::byte> out) = 0;
  // Returns the number of bytes of the file that have been read so far.
  virtual std::uint64_t file_bytes() const = 0;
};

// Opens the file. Throws IoError.
std::unique_ptr<ByteStream> open_bytes(const std::string& path);

}  // namespace terrace
