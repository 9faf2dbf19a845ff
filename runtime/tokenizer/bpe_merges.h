#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace terrace {

// A merge: two neighbouring ids become one. Lower ranks are merged first.
struct BpeMerge {
  std::int32_t left = 0;
  std::int32_t right = 0;
  std::int32_t rank = 0;
  std::int32_t id = 0;
};

// Joins ids by a table of pairs: byte-pair encoding. Thread-safe.
class BpeMerges {
 public:
  static constexpr std::int32_t kIdMax = (1 << 21) - 1;
  static constexpr std::size_t kMergesMax = (std::size_t{1} << 22) - 1;

  // Ranks are below kMergesMax, and each belongs to one merge. Ids are at most kIdMax. If two
  // merges have the same pair, the later one counts.
  explicit BpeMerges(std::span<const BpeMerge> merges);

  // Memory that apply() uses, kept from call to call by one thread.
  class Scratch;

  // Joins the leftmost pair of the lowest rank, as long as there is a pair to join. Shortens `ids`
  // from `first` on to what remains.
  void apply(std::vector<std::int32_t>& ids, std::size_t first, Scratch& scratch) const;

 private:
  // A key is a rank and, in the bits below it, the place of the pair. So the least of several keys
  // is the leftmost pair of the lowest rank.
  static constexpr int kPlaceBits = 6;
  // Larger than every rank. A key made from it is still a positive number.
  static constexpr std::int32_t kNoRank = INT32_MAX >> kPlaceBits;
  static_assert(kMergesMax < kNoRank);
  // A slot packs left, right and rank into 64 bits: eight slots are a cache line.
  static constexpr int kIdBits = 21;
  static constexpr int kRankBits = 64 - 2 * kIdBits;
  static_assert(kIdMax >> kIdBits == 0 && kMergesMax >> kRankBits == 0);
  static constexpr std::uint64_t kEmpty = ~std::uint64_t{0};
  // Most vocabularies give bytes the ids below this number. All pairs of such ids have a table of
  // their own.
  static constexpr std::uint32_t kLowIds = 256;

  // Returns the rank of the pair's merge; kNoRank where there is none.
  std::int32_t find(std::int32_t left, std::int32_t right) const {
    if (are_low(left, right)) return low_ranks_[low_place_of(left, right)];
    const std::uint64_t pair = pair_of(left, right);
    const std::size_t bit = bit_of(pair);
    if ((known_[bit / 64] >> bit % 64 & 1) == 0) return kNoRank;
    for (std::size_t at = place_of(pair);; at = (at + 1) & mask_) {
      const std::uint64_t slot = slots_[at];
      if (slot == kEmpty) return kNoRank;
      if (slot >> kRankBits == pair) return static_cast<std::int32_t>(slot & kMergesMax);
    }
  }
  static bool are_low(std::int32_t left, std::int32_t right) {
    return static_cast<std::uint32_t>(left | right) < kLowIds;
  }
  static std::size_t low_place_of(std::int32_t left, std::int32_t right) {
    return static_cast<std::size_t>(left) * kLowIds + static_cast<std::size_t>(right);
  }
  static std::uint64_t pair_of(std::int32_t left, std::int32_t right) {
    return std::uint64_t{static_cast<std::uint32_t>(left)} << kIdBits |
           static_cast<std::uint32_t>(right);
  }
  std::size_t place_of(std::uint64_t pair) const {
    return static_cast<std::size_t>(pair * 0x9E3779B97F4A7C15ULL >> shift_);
  }
  // Most pairs that are looked up have no merge: a bit for each hash says so without the table.
  std::size_t bit_of(std::uint64_t pair) const {
    return static_cast<std::size_t>(pair * 0xD6E8FEB86659FD93ULL >> bit_shift_);
  }
  std::int32_t id_of(std::int32_t rank) const { return ids_[static_cast<std::size_t>(rank)]; }
  void add(const BpeMerge& merge);
  std::size_t apply_few(std::span<std::int32_t> ids) const;
  std::size_t apply_many(std::span<std::int32_t> ids, Scratch& scratch) const;

  std::vector<std::int32_t> ids_;        // by rank: the id that the pair becomes
  std::vector<std::int32_t> low_ranks_;  // [left, right]
  std::vector<std::uint64_t> slots_;
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
  std::vector<std::int32_t> ranks_;      // of each id with the one after it
  std::vector<std::uint32_t> next_;      // the place of the id after it
  std::vector<std::uint32_t> previous_;  // the place of the id before it
  std::vector<Candidate> heap_;
};

}  // namespace terrace
