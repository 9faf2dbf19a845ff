#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace terrace {

// XXH3, 64 bits (xxhash.com): the checksum of every extent and file.
std::uint64_t hash_bytes(std::span<const std::byte> bytes);

// The same hash of bytes that come in pieces.
class StreamingHash {
 public:
  StreamingHash();
  ~StreamingHash();
  StreamingHash(const StreamingHash&) = delete;
  StreamingHash& operator=(const StreamingHash&) = delete;

  void add(std::span<const std::byte> bytes);
  std::uint64_t value() const;

 private:
  void* state_;
};

}  // namespace terrace
