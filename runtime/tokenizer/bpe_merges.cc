#include "runtime/tokenizer/bpe_merges.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <limits>

#include "base/check.h"

namespace terrace {
namespace {

// Up to so many ids the lowest rank is looked for among all; more have a heap.
constexpr std::size_t kFewIds = 40;
constexpr std::size_t kBitsOfSlot = 4;
constexpr std::uint32_t kNobody = std::numeric_limits<std::uint32_t>::max();

}  // namespace

BpeMerges::BpeMerges(std::span<const BpeMerge> merges) {
  const std::size_t slots = std::bit_ceil(std::max<std::size_t>(2 * merges.size(), 16));
  slots_.resize(slots);
  mask_ = slots - 1;
  shift_ = 64 - std::countr_zero(slots);
  known_.resize(std::max<std::size_t>(slots * kBitsOfSlot / 64, 1));
  bit_shift_ = 64 - std::countr_zero(known_.size() * 64);
  for (const BpeMerge& merge : merges) {
    const std::uint64_t pair = pair_of(merge.left, merge.right);
    std::size_t at = place_of(pair);
    while (slots_[at].pair != kEmpty && slots_[at].pair != pair) at = (at + 1) & mask_;
    slots_[at] = {pair, {merge.rank, merge.id}};
    known_[bit_of(pair) / 64] |= std::uint64_t{1} << bit_of(pair) % 64;
  }
}

void BpeMerges::apply(std::vector<std::int32_t>& ids, std::size_t first, Scratch& scratch) const {
  const std::span<std::int32_t> all = std::span(ids).subspan(first);
  if (all.size() < 2) return;
  TERRACE_CHECK_LT(all.size(), std::size_t{kNobody});
  const std::size_t left =
      all.size() <= kFewIds ? apply_few(all, scratch) : apply_many(all, scratch);
  ids.resize(first + left);
}

std::size_t BpeMerges::apply_few(std::span<std::int32_t> ids, Scratch& scratch) const {
  std::size_t count = ids.size();
  if (scratch.joined_.size() < kFewIds) scratch.joined_.resize(kFewIds);
  Joined* joined = scratch.joined_.data();
  for (std::size_t i = 0; i + 1 < count; ++i) joined[i] = find(ids[i], ids[i + 1]);
  while (count > 1) {
    std::size_t best = 0;
    for (std::size_t i = 1; i + 1 < count; ++i) {
      if (joined[i].rank < joined[best].rank) best = i;
    }
    if (joined[best].rank == kNoRank) break;
    ids[best] = joined[best].id;
    --count;
    for (std::size_t i = best + 1; i < count; ++i) {
      ids[i] = ids[i + 1];
      joined[i - 1] = joined[i];
    }
    // The pairs of the new id: with what stands before it and behind it.
    if (best > 0) joined[best - 1] = find(ids[best - 1], ids[best]);
    if (best + 1 < count) joined[best] = find(ids[best], ids[best + 1]);
  }
  return count;
}

std::size_t BpeMerges::apply_many(std::span<std::int32_t> ids, Scratch& scratch) const {
  const auto count = static_cast<std::uint32_t>(ids.size());
  auto& [joined, next, previous, heap] = scratch;
  joined.assign(count, {});
  next.resize(count);
  previous.resize(count);
  heap.clear();
  const auto is_later = [](const Scratch::Candidate& a, const Scratch::Candidate& b) {
    return a.rank != b.rank ? a.rank > b.rank : a.at > b.at;
  };
  const auto look_up = [&](std::uint32_t at) {
    joined[at] = next[at] == kNobody ? Joined{} : find(ids[at], ids[next[at]]);
    if (joined[at].rank == kNoRank) return;
    heap.push_back({joined[at].rank, at});
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
    if (joined[best.at].rank != best.rank) continue;  // one of the two is another by now
    const std::uint32_t gone = next[best.at];
    ids[best.at] = joined[best.at].id;
    joined[gone] = {};
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
