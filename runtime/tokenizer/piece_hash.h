#pragma once

#include <cstdint>
#include <cstring>
#include <string_view>

namespace terrace {
namespace piece_hash_parts {

template <typename Word>
Word word_at(const char* at) {
  Word value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

inline std::uint64_t mix(std::uint64_t hash, std::uint64_t value) {
  hash = (hash ^ value) * 0xD6E8FEB86659FD93ULL;
  return hash ^ hash >> 32;
}

inline std::uint64_t finish(std::uint64_t hash) {
  hash *= 0x9E3779B97F4A7C15ULL;
  return hash ^ hash >> 29;
}

}  // namespace piece_hash_parts

// Returns a hash of a piece that is not empty; quick for short ones. Its low bits are as good as
// its high bits.
inline std::uint64_t piece_hash(std::string_view piece) {
  using namespace piece_hash_parts;  // NOLINT(google-build-using-namespace): of this function alone
  const std::size_t size = piece.size();
  const char* at = piece.data();
  std::uint64_t hash = size * 0x9E3779B97F4A7C15ULL;
  for (std::size_t done = 0; done + 8 <= size; done += 8) {
    hash = mix(hash, word_at<std::uint64_t>(at + done));
  }
  if (size >= 8) return finish(mix(hash, word_at<std::uint64_t>(at + size - 8)));
  if (size >= 4) {
    const std::uint64_t low = word_at<std::uint32_t>(at);
    const std::uint64_t high = word_at<std::uint32_t>(at + size - 4);
    return finish(mix(hash, low | high << 32));
  }
  const auto byte = [&](std::size_t i) { return std::uint64_t{static_cast<unsigned char>(at[i])}; };
  return finish(mix(hash, byte(0) | byte(size / 2) << 8 | byte(size - 1) << 16));
}

}  // namespace terrace
