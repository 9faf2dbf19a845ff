#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

namespace terrace {

// Remembers the ids of short pieces, as many as fit. A new piece takes the place of the one that
// was there before. Owned by one thread at a time.
class PieceIdCache {
 public:
  static constexpr std::size_t kPieceBytesMax = 31;
  static constexpr std::size_t kIdsMax = 7;

  PieceIdCache() : slots_(kSlots) {}

  // Prefetches the slot that find() reads.
  void prefetch(std::uint64_t hash) const { __builtin_prefetch(&slots_[hash % kSlots]); }

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

 private:
  static constexpr std::size_t kSlots = std::size_t{1} << 15;
  struct alignas(64) Slot {  // a cache line
    std::array<std::int32_t, kIdsMax> ids;
    std::uint8_t id_count = 0;
    std::array<char, kPieceBytesMax> piece;
    std::uint8_t size_bytes = 0;  // 0: empty
  };
  static_assert(sizeof(Slot) == 64);

  std::vector<Slot> slots_;
};

}  // namespace terrace
