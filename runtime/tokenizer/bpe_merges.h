#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace terrace {

// What two neighbouring ids become, and how early: lower ranks first.
struct BpeMerge {
  std::int32_t left = 0;
  std::int32_t right = 0;
  std::int32_t rank = 0;
  std::int32_t id = 0;
};

// Joins ids by a table of pairs: byte-pair encoding. Thread-safe.
class BpeMerges {
 public:
  // Of two merges of the same pair the later one counts.
  explicit BpeMerges(std::span<const BpeMerge> merges);

  // Memory that apply() uses, kept from call to call by one thread.
  class Scratch;

  // Joins, as long as there is one, the leftmost pair of the lowest rank; shortens `ids` from
  // `first` on to what remains.
  void apply(std::vector<std::int32_t>& ids, std::size_t first, Scratch& scratch) const;

 private:
  static constexpr std::int32_t kNoRank = INT32_MAX;
  struct Joined {
    std::int32_t rank = kNoRank;
    std::int32_t id = 0;
  };
  struct Slot {
    std::uint64_t pair = kEmpty;
    Joined joined;
  };
  static constexpr std::uint64_t kEmpty = ~std::uint64_t{0};

  Joined find(std::int32_t left, std::int32_t right) const {
    const std::uint64_t pair = pair_of(left, right);
    const std::size_t bit = bit_of(pair);
    if ((known_[bit / 64] >> bit % 64 & 1) == 0) return {};
    for (std::size_t at = place_of(pair);; at = (at + 1) & mask_) {
      const Slot& slot = slots_[at];
      if (slot.pair == pair) return slot.joined;
      if (slot.pair == kEmpty) return {};
    }
  }
  static std::uint64_t pair_of(std::int32_t left, std::int32_t right) {
    return std::uint64_t{static_cast<std::uint32_t>(left)} << 32 |
           static_cast<std::uint32_t>(right);
  }
  std::size_t place_of(std::uint64_t pair) const {
    return static_cast<std::size_t>(pair * 0x9E3779B97F4A7C15ULL >> shift_);
  }
  // Most pairs that are looked up have no merge: a bit for each hash says so without the table.
  std::size_t bit_of(std::uint64_t pair) const {
    return static_cast<std::size_t>(pair * 0xD6E8FEB86659FD93ULL >> bit_shift_);
  }
  std::size_t apply_few(std::span<std::int32_t> ids, Scratch& scratch) const;
  std::size_t apply_many(std::span<std::int32_t> ids, Scratch& scratch) const;

  std::vector<Slot> slots_;
  std::size_t mask_ = 0;
  int shift_ = 0;
  std::vector<std::uint64_t> known_;
  int bit_shift_ = 0;
};

class BpeMerges::Scratch {
 private:
  friend class BpeMerges;
  struct Candidate {
    std::int32_t rank;
    std::uint32_t at;
  };
  std::vector<Joined> joined_;           // of each id with the one behind it
  std::vector<std::uint32_t> next_;      // the place of the id behind it
  std::vector<std::uint32_t> previous_;  // the place of the id before it
  std::vector<Candidate> heap_;
};

}  // namespace terrace
