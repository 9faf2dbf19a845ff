#include "parallel/mpi/direct_exchange.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "parallel/rank_order.h"

namespace terrace {

void DirectExchange::run(int phase) {
  const CollectiveCall& call = setting_.call;
  switch (call.kind) {
    case CollectiveKind::kAllGather:
      return gather();
    case CollectiveKind::kBroadcast:
      return broadcast();
    case CollectiveKind::kAllToAll:
      return transpose();
    case CollectiveKind::kReduceScatter: {
      const std::size_t part = call.size_bytes() / setting_.buffers.size();
      return reduce(static_cast<std::size_t>(setting_.rank) * part, part, call.target);
    }
    case CollectiveKind::kAllReduce: {
      if (phase == 1) return gather_reduced();
      const ElementRange part = all_reduce_part(call.elements, setting_.rank, size());
      const std::size_t offset = part.begin * size_of(call.dtype);
      return reduce(offset, part.count * size_of(call.dtype), call.target + offset);
    }
    case CollectiveKind::kSend:
    case CollectiveKind::kRecv:
    case CollectiveKind::kSplit:
      TERRACE_CHECK(false);
  }
}

void DirectExchange::move(int from, const std::byte* address, std::span<std::byte> to) {
  if (to.empty()) return;
  if (from != setting_.rank) return read_(from, address, to);
  if (address != to.data()) std::memcpy(to.data(), address, to.size());
}

// Copies this rank's own part, then the parts of the ranks after it, so that not all read from one
// rank at the same time.
void DirectExchange::gather() {
  const std::size_t part = setting_.call.size_bytes() / setting_.buffers.size();
  for (int i = 0; i < size(); ++i) {
    const int from = (setting_.rank + i) % size();
    move(from, buffers_of(from).source,
         {setting_.call.target + static_cast<std::size_t>(from) * part, part});
  }
}

void DirectExchange::broadcast() {
  const int root = setting_.call.peer;
  if (root == setting_.rank) return;
  move(root, buffers_of(root).source, {setting_.call.target, setting_.call.size_bytes()});
}

void DirectExchange::transpose() {
  const std::size_t part = setting_.call.size_bytes() / setting_.buffers.size();
  for (int i = 0; i < size(); ++i) {
    const int from = (setting_.rank + i) % size();
    move(from, buffers_of(from).source + static_cast<std::size_t>(setting_.rank) * part,
         {setting_.call.target + static_cast<std::size_t>(from) * part, part});
  }
}

// Works piece by piece, so that the data just read is in the caches when it is added.
void DirectExchange::reduce(std::size_t offset, std::size_t bytes, std::byte* target) {
  const CollectiveCall& call = setting_.call;
  const std::size_t room =
      setting_.scratch.size() / setting_.buffers.size() / kCacheLineBytes * kCacheLineBytes;
  TERRACE_CHECK_LE(kCacheLineBytes, room);
  for (std::size_t at = 0; at < bytes; at += room) {
    const std::size_t piece = std::min(room, bytes - at);
    for (int i = 0; i < size(); ++i) {
      const int from = (setting_.rank + i) % size();
      const std::byte*& source = setting_.sources[static_cast<std::size_t>(from)];
      source = buffers_of(from).source + offset + at;
      if (from == setting_.rank) continue;
      const std::span<std::byte> copy =
          setting_.scratch.subspan(static_cast<std::size_t>(from) * room, piece);
      read_(from, source, copy);
      source = copy.data();
    }
    std::byte* const piece_target = target + at;
    reduce_in_rank_order(std::span(&piece_target, 1), setting_.sources, piece / size_of(call.dtype),
                         call.dtype, call.op);
  }
}

// Copies the parts that the others have reduced.
void DirectExchange::gather_reduced() {
  const CollectiveCall& call = setting_.call;
  const std::size_t width = size_of(call.dtype);
  for (int i = 1; i < size(); ++i) {
    const int from = (setting_.rank + i) % size();
    const ElementRange part = all_reduce_part(call.elements, from, size());
    move(from, buffers_of(from).target + part.begin * width,
         {call.target + part.begin * width, part.count * width});
  }
}

}  // namespace terrace
