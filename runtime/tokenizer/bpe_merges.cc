#include "runtime/tokenizer/bpe_merges.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstring>
#include <limits>

#include "base/check.h"

namespace terrace {
namespace {

// Up to this many ids, the lowest rank is looked for among all of them; more ids have a heap.
constexpr std::size_t kFewIds = 64;  // a bit each
constexpr std::size_t kBitsOfSlot = 4;
constexpr std::int32_t kNoId = -1;
constexpr std::uint32_t kNobody = std::numeric_limits<std::uint32_t>::max();

// A vector register of keys, as all processors have it.
using Keys = std::int32_t __attribute__((vector_size(16)));
constexpr std::size_t kKeysOfVector = sizeof(Keys) / sizeof(std::int32_t);

// Returns the least of `count` keys. `count` is a multiple of kKeysOfVector.
std::int32_t least_key(const std::int32_t* keys, std::size_t count) {
  Keys least;
  std::memcpy(&least, keys, sizeof least);
  for (std::size_t i = kKeysOfVector; i < count; i += kKeysOfVector) {
    Keys next;
    std::memcpy(&next, keys + i, sizeof next);
    least = next < least ? next : least;
  }
  return std::min(std::min(least[0], least[1]), std::min(least[2], least[3]));
}

// Sets of places, a bit each.
constexpr std::uint64_t bit_at(std::size_t place) { return std::uint64_t{1} << place; }
std::size_t first_of(std::uint64_t places) {
  return static_cast<std::size_t>(std::countr_zero(places));
}
std::size_t last_of(std::uint64_t places) {
  return static_cast<std::size_t>(63 - std::countl_zero(places));
}

}  // namespace

BpeMerges::BpeMerges(std::span<const BpeMerge> merges)
    : low_ranks_(std::size_t{kLowIds} * kLowIds, kNoRank) {
  const std::size_t slots = std::bit_ceil(std::max<std::size_t>(2 * merges.size(), 16));
  slots_.resize(slots, kEmpty);
  mask_ = slots - 1;
  shift_ = 64 - std::countr_zero(slots);
  known_.resize(std::max<std::size_t>(slots * kBitsOfSlot / 64, 1));
  bit_shift_ = 64 - std::countr_zero(known_.size() * 64);
  for (const BpeMerge& merge : merges) add(merge);
}

void BpeMerges::add(const BpeMerge& merge) {
  const auto rank = static_cast<std::size_t>(merge.rank);
  TERRACE_CHECK_LT(rank, kMergesMax);
  TERRACE_CHECK(std::min({merge.left, merge.right, merge.id}) >= 0);
  TERRACE_CHECK(std::max({merge.left, merge.right, merge.id}) <= kIdMax);
  if (ids_.size() <= rank) ids_.resize(rank + 1, kNoId);
  TERRACE_CHECK_EQ(ids_[rank], kNoId);
  ids_[rank] = merge.id;
  const std::uint64_t pair = pair_of(merge.left, merge.right);
  std::size_t at = place_of(pair);
  while (slots_[at] != kEmpty && slots_[at] >> kRankBits != pair) at = (at + 1) & mask_;
  slots_[at] = pair << kRankBits | rank;
  known_[bit_of(pair) / 64] |= std::uint64_t{1} << bit_of(pair) % 64;
  if (are_low(merge.left, merge.right)) {
    low_ranks_[low_place_of(merge.left, merge.right)] = merge.rank;
  }
}

void BpeMerges::apply(std::vector<std::int32_t>& ids, std::size_t first, Scratch& scratch) const {
  const std::span<std::int32_t> all = std::span(ids).subspan(first);
  if (all.size() < 2) return;
  TERRACE_CHECK_LT(all.size(), std::size_t{kNobody});
  const std::size_t left = all.size() <= kFewIds ? apply_few(all) : apply_many(all, scratch);
  ids.resize(first + left);
}

std::size_t BpeMerges::apply_few(std::span<std::int32_t> ids) const {
  static_assert(kFewIds == std::size_t{1} << kPlaceBits);
  constexpr std::int32_t kNoKey = kNoRank << kPlaceBits;  // this key and all above: no merge
  const std::size_t count = ids.size();
  const auto key_of = [&](std::size_t at, std::size_t next) {
    return find(ids[at], ids[next]) << kPlaceBits | static_cast<std::int32_t>(at);
  };
  std::array<std::int32_t, kFewIds> of_places;
  std::int32_t* const keys = of_places.data();
  const std::size_t padded = (count + kKeysOfVector - 1) / kKeysOfVector * kKeysOfVector;
  for (std::size_t i = 0; i + 1 < count; ++i) keys[i] = key_of(i, i + 1);
  std::fill(keys + count - 1, keys + padded, kNoKey);
  std::uint64_t there = ~std::uint64_t{0} >> (kFewIds - count);  // the places that have an id
  for (;;) {
    const std::int32_t least = least_key(keys, padded);
    if (least >= kNoKey) break;
    const auto at = static_cast<std::size_t>(least) % kFewIds;
    ids[at] = id_of(least >> kPlaceBits);
    const std::uint64_t before = there & (bit_at(at) - 1);
    std::uint64_t behind = there ^ before ^ bit_at(at);
    const std::size_t gone = first_of(behind);
    keys[gone] = kNoKey;
    there ^= bit_at(gone);
    behind ^= bit_at(gone);
    // The new id's pairs change: with the id after it and with the id before it.
    keys[at] = behind == 0 ? kNoKey : key_of(at, first_of(behind));
    if (before != 0) keys[last_of(before)] = key_of(last_of(before), at);
  }
  std::size_t left = 0;
  for (; there != 0; there &= there - 1) ids[left++] = ids[first_of(there)];
  return left;
}

std::size_t BpeMerges::apply_many(std::span<std::int32_t> ids, Scratch& scratch) const {
  const auto count = static_cast<std::uint32_t>(ids.size());
  auto& [ranks, next, previous, heap] = scratch;
  ranks.assign(count, kNoRank);
  next.resize(count);
  previous.resize(count);
  heap.clear();
  const auto is_later = [](const Scratch::Candidate& a, const Scratch::Candidate& b) {
    return a.rank != b.rank ? a.rank > b.rank : a.at > b.at;
  };
  const auto look_up = [&](std::uint32_t at) {
    ranks[at] = next[at] == kNobody ? kNoRank : find(ids[at], ids[next[at]]);
    if (ranks[at] == kNoRank) return;
    heap.push_back({ranks[at], at});
    std::push_heap(heap.begin(), heap.end(), is_later);
  };
  for (std::uint32_t at = 0; at < count; ++at) {
    next[at] = at + 1 < count ? at + 1 : kNobody;
    previous[at] = at > 0 ? at - 1 : kNobody;
    look_up(at);
  }
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), is_later);
    const Scratch::Candidate best = heap.back();
    heap.pop_back();
    if (ranks[best.at] != best.rank) continue;  // one of the two is another by now
    const std::uint32_t gone = next[best.at];
    ids[best.at] = id_of(best.rank);
    ranks[gone] = kNoRank;
    next[best.at] = next[gone];
    if (next[gone] != kNobody) previous[next[gone]] = best.at;
    look_up(best.at);
    if (previous[best.at] != kNobody) look_up(previous[best.at]);
  }
  std::size_t left = 0;
  for (std::uint32_t at = 0; at != kNobody; at = next[at]) ids[left++] = ids[at];
  return left;
}

}  // namespace terrace
