#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

namespace terrace {

// Remembers the ids of short pieces, as many as fit: a piece takes the place of one that was there
// before. Owned by one thread at a time.
class PieceCache {
 public:
  static constexpr std::size_t kPieceBytesMax = 31;
  static constexpr std::size_t kIdsMax = 7;

  PieceCache() : slots_(kSlots) {}

  // Returns the ids of the piece; an empty span where it is not known. Valid until the next
  // store().
  std::span<const std::int32_t> find(std::string_view piece, std::uint64_t hash) const {
    const Slot& slot = slots_[hash % kSlots];
    if (slot.size_bytes != piece.size() ||
        std::memcmp(slot.piece.data(), piece.data(), piece.size()) != 0) {
      return {};
    }
    return {slot.ids.data(), slot.id_count};
  }

  // Remembers the piece if it and its ids are few enough; pieces without ids are not remembered.
  void store(std::string_view piece, std::uint64_t hash, std::span<const std::int32_t> ids) {
    if (piece.size() > kPieceBytesMax || ids.size() > kIdsMax || ids.empty()) return;
    Slot& slot = slots_[hash % kSlots];
    slot.size_bytes = static_cast<std::uint8_t>(piece.size());
    slot.id_count = static_cast<std::uint8_t>(ids.size());
    std::memcpy(slot.piece.data(), piece.data(), piece.size());
    std::memcpy(slot.ids.data(), ids.data(), ids.size_bytes());
  }

  // Of a piece of 1 to kPieceBytesMax bytes.
  static std::uint64_t hash_of(std::string_view piece) {
    const std::size_t size = piece.size();
    const char* at = piece.data();
    std::uint64_t hash = size * 0x9E3779B97F4A7C15ULL;
    std::size_t done = 0;
    for (; done + 8 <= size; done += 8) hash = mix(hash, word<std::uint64_t>(at + done));
    if (size >= 8) return finish(mix(hash, word<std::uint64_t>(at + size - 8)));
    if (size >= 4) {
      const std::uint64_t low = word<std::uint32_t>(at);
      return finish(mix(hash, low | std::uint64_t{word<std::uint32_t>(at + size - 4)} << 32));
    }
    const auto byte = [&](std::size_t i) {
      return std::uint64_t{static_cast<unsigned char>(at[i])};
    };
    return finish(mix(hash, byte(0) | byte(size / 2) << 8 | byte(size - 1) << 16));
  }

 private:
  static constexpr std::size_t kSlots = std::size_t{1} << 16;
  struct alignas(64) Slot {  // a cache line
    std::array<std::int32_t, kIdsMax> ids;
    std::uint8_t id_count = 0;
    std::array<char, kPieceBytesMax> piece;
    std::uint8_t size_bytes = 0;  // 0: empty
  };
  static_assert(sizeof(Slot) == 64);

  template <typename Word>
  static Word word(const char* at) {
    Word value;
    std::memcpy(&value, at, sizeof value);
    return value;
  }
  static std::uint64_t mix(std::uint64_t hash, std::uint64_t value) {
    hash = (hash ^ value) * 0xD6E8FEB86659FD93ULL;
    return hash ^ hash >> 32;
  }
  static std::uint64_t finish(std::uint64_t hash) {
    hash *= 0x9E3779B97F4A7C15ULL;
    return hash ^ hash >> 29;
  }

  std::vector<Slot> slots_;
};

}  // namespace terrace
