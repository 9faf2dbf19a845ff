#include "parallel/mpi/exchange.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "parallel/rank_order.h"

namespace terrace {
namespace {

void copy(std::span<std::byte> target, const std::byte* source) {
  if (!target.empty() && target.data() != source) {
    // The piece is in the caches and its target is wanted there, so streaming stores would be
    // slower.
    std::memcpy(target.data(), source, target.size());
  }
}

std::uint64_t pieces_in(std::size_t bytes, std::size_t piece) {
  return (bytes + piece - 1) / piece;
}

std::size_t part_bytes(const ExchangeSetting& setting) {
  const std::size_t whole = setting.call.size_bytes();
  if (setting.call.kind == CollectiveKind::kBroadcast) return whole;
  if (setting.call.kind == CollectiveKind::kAllReduce) {
    const ElementRange part = all_reduce_part(setting.call.elements, 0, setting.size);
    return part.count * size_of(setting.call.dtype);
  }
  return whole / static_cast<std::size_t>(setting.size);
}

}  // namespace

std::size_t piece_bytes(const ExchangeSetting& setting, bool scattered) {
  const int pieces = scattered ? std::max(setting.size - 1, 1) : setting.shared_pieces;
  const std::size_t room = setting.slot_bytes / static_cast<std::size_t>(pieces);
  TERRACE_CHECK_LE(kCacheLineBytes, room);
  return room / kCacheLineBytes * kCacheLineBytes;
}

MoveExchange::MoveExchange(const ExchangeSetting& setting)
    : setting_(setting),
      part_(part_bytes(setting)),
      piece_(piece_bytes(setting, setting.call.kind == CollectiveKind::kAllToAll)) {}

std::uint64_t MoveExchange::rounds() const { return pieces_in(part_, piece_); }

bool MoveExchange::is_shared(std::uint64_t /*round*/) const {
  return !is(CollectiveKind::kAllToAll);
}

bool MoveExchange::gives(int rank) const {
  return !is(CollectiveKind::kBroadcast) || rank == setting_.call.peer;
}

std::size_t MoveExchange::part_begin(int rank) const {
  if (is(CollectiveKind::kBroadcast)) return 0;
  return std::min(static_cast<std::size_t>(rank) * part_, setting_.call.size_bytes());
}

MoveExchange::Extent MoveExchange::piece_of(std::uint64_t round, int rank) const {
  const std::size_t part = std::min(part_, setting_.call.size_bytes() - part_begin(rank));
  const std::size_t at = std::min(round * piece_, part);
  return {at, std::min(piece_, part - at)};
}

std::span<const std::byte> MoveExchange::give(std::uint64_t round, int to) const {
  if (!gives(setting_.rank)) return {};
  const Extent piece = piece_of(round, setting_.rank);
  const std::byte* source = setting_.call.source;
  if (is(CollectiveKind::kAllToAll)) source += part_begin(to);
  if (is(CollectiveKind::kAllReduce)) source = setting_.call.target + part_begin(setting_.rank);
  return {source + piece.offset, piece.bytes};
}

std::span<std::byte> MoveExchange::place(std::uint64_t round, int from) const {
  if (!gives(from)) return {};
  const Extent piece = piece_of(round, from);
  return {setting_.call.target + part_begin(from) + piece.offset, piece.bytes};
}

void MoveExchange::consume(std::uint64_t round, std::span<const std::byte* const> pieces) {
  for (int from = 0; from < setting_.size; ++from) {
    copy(place(round, from), pieces[static_cast<std::size_t>(from)]);
  }
}

ReduceExchange::ReduceExchange(const ExchangeSetting& setting)
    : setting_(setting),
      gathers_(setting.call.kind == CollectiveKind::kAllReduce),
      piece_(piece_bytes(setting, true)),
      segments_(pieces_in(part_of(0).bytes, piece_)) {}

// Puts the reduction of a segment before the gathering of the previous one: r0 r1 g0 r2 g1 ...
// g(n-1).
ReduceExchange::Step ReduceExchange::step_of(std::uint64_t round) const {
  if (!gathers_) return {false, round};
  if (round == 0) return {false, 0};
  if (round == 2 * segments_ - 1) return {true, segments_ - 1};
  if (round % 2 == 1) return {false, (round + 1) / 2};
  return {true, round / 2 - 1};
}

// Returns the part of the data that a rank reduces. No part is larger than rank 0's.
ReduceExchange::Extent ReduceExchange::part_of(int rank) const {
  const std::size_t width = size_of(setting_.call.dtype);
  if (gathers_) {
    const ElementRange part = all_reduce_part(setting_.call.elements, rank, setting_.size);
    return {part.begin * width, part.count * width};
  }
  const std::size_t bytes = part_bytes(setting_);
  return {static_cast<std::size_t>(rank) * bytes, bytes};
}

ReduceExchange::Extent ReduceExchange::segment_of(int rank, std::uint64_t segment) const {
  const Extent part = part_of(rank);
  const std::size_t at = std::min(segment * piece_, part.bytes);
  return {part.offset + at, std::min(piece_, part.bytes - at)};
}

// Returns where this rank's result is written. In an all_reduce that is in the data.
std::byte* ReduceExchange::reduced(std::uint64_t segment) const {
  const std::size_t offset = segment_of(setting_.rank, segment).offset;
  if (gathers_) return setting_.call.target + offset;
  return setting_.call.target + (offset - part_of(setting_.rank).offset);
}

std::optional<std::size_t> ReduceExchange::gather_slot(std::uint64_t round) const {
  const Step step = step_of(round);
  if (!step.is_gather) return std::nullopt;
  return step.segment % setting_.gather_slots.size();
}

std::span<const std::byte> ReduceExchange::give(std::uint64_t round, int to) const {
  const Step step = step_of(round);
  if (step.is_gather) {
    return {reduced(step.segment), segment_of(setting_.rank, step.segment).bytes};
  }
  const Extent extent = segment_of(to, step.segment);
  return {setting_.call.source + extent.offset, extent.bytes};
}

std::span<std::byte> ReduceExchange::place(std::uint64_t round, int from) const {
  const Step step = step_of(round);
  if (step.is_gather) {
    const Extent extent = segment_of(from, step.segment);
    return {setting_.call.target + extent.offset, extent.bytes};
  }
  const auto ranks = static_cast<std::size_t>(setting_.size);
  const std::size_t slot = round % 2 * ranks + static_cast<std::size_t>(from);
  return setting_.scratch.subspan(slot * piece_, segment_of(setting_.rank, step.segment).bytes);
}

void ReduceExchange::consume(std::uint64_t round, std::span<const std::byte* const> pieces) {
  const Step step = step_of(round);
  if (step.is_gather) {
    for (int from = 0; from < setting_.size; ++from) {
      if (from == setting_.rank) continue;
      copy(place(round, from), pieces[static_cast<std::size_t>(from)]);
    }
    return;
  }
  const Extent extent = segment_of(setting_.rank, step.segment);
  if (extent.bytes == 0) return;
  const std::span<std::byte> slot = setting_.gather_slots[step.segment % 2];
  const std::array<std::byte*, 2> targets = {reduced(step.segment), slot.data()};
  const std::size_t count = gathers_ && !slot.empty() ? 2 : 1;
  reduce_in_rank_order(std::span(targets).first(count), pieces,
                       extent.bytes / size_of(setting_.call.dtype), setting_.call.dtype,
                       setting_.call.op);
}

}  // namespace terrace
