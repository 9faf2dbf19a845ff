#include "parallel/mpi/chain_exchange.h"

#include <algorithm>

#include "base/check.h"
#include "parallel/rank_order.h"

namespace terrace {
namespace {

std::size_t widening_of(DType dtype) { return size_of(sum_type(dtype)) / size_of(dtype); }

// Returns the room for a piece: all pieces for other ranks of the host fit the slot, and the four
// buffers, which have sums, fit the scratch space.
std::size_t piece_of(const ChainExchange::Setting& setting, int per_host) {
  const auto others = static_cast<std::size_t>(std::max(per_host - 1, 1));
  const std::size_t of_scratch = setting.scratch.size() / (4 * widening_of(setting.call.dtype));
  const std::size_t room = std::min(setting.slot_bytes / others, of_scratch);
  TERRACE_CHECK_LE(kCacheLineBytes, room);
  return room / kCacheLineBytes * kCacheLineBytes;
}

// Returns the bytes of the largest part of the data.
std::size_t largest_part(const CollectiveCall& call, int ranks) {
  const std::size_t elements = call.kind == CollectiveKind::kAllReduce
                                   ? all_reduce_part(call.elements, 0, ranks).count
                                   : call.elements / static_cast<std::size_t>(ranks);
  return elements * size_of(call.dtype);
}

}  // namespace

ChainExchange::ChainExchange(const Setting& setting)
    : setting_(setting),
      hosts_(setting.layout.hosts()),
      per_host_(setting.layout.size() / hosts_),
      host_(setting.layout.own_host()),
      place_(setting.layout.place_of(setting.layout.rank())),
      widening_(widening_of(setting.call.dtype)),
      piece_(piece_of(setting, per_host_)),
      items_((largest_part(setting.call, setting.layout.size()) + piece_ - 1) / piece_ *
             static_cast<std::uint64_t>(hosts_)) {
  TERRACE_CHECK(setting.layout.is_in_rank_order());
}

std::optional<ChainExchange::Item> ChainExchange::item_of(std::uint64_t round, int host) const {
  const auto late = static_cast<std::uint64_t>(host);
  if (round < late || round - late >= items_) return std::nullopt;
  const auto hosts = static_cast<std::uint64_t>(hosts_);
  return Item{static_cast<int>((round - late) % hosts), (round - late) / hosts};
}

ChainExchange::Extent ChainExchange::part_of(int rank) const {
  const CollectiveCall& call = setting_.call;
  if (call.kind == CollectiveKind::kAllReduce) {
    const ElementRange part = all_reduce_part(call.elements, rank, setting_.layout.size());
    return {part.begin * size_of(call.dtype), part.count * size_of(call.dtype)};
  }
  const std::size_t bytes = largest_part(call, setting_.layout.size());
  return {static_cast<std::size_t>(rank) * bytes, bytes};
}

ChainExchange::Extent ChainExchange::extent_of(const Item& item, int place) const {
  const Extent part = part_of(owner(item, place));
  const std::size_t at = std::min(item.segment * piece_, part.bytes);
  return {part.offset + at, std::min(piece_, part.bytes - at)};
}

std::size_t ChainExchange::sum_bytes(const Extent& extent) const {
  return extent.bytes * widening_;
}

// Returns where this rank's own result is written. In an all_reduce that is in the data.
std::byte* ChainExchange::target_of(const Extent& extent) const {
  if (setting_.call.kind == CollectiveKind::kAllReduce) return setting_.call.target + extent.offset;
  return setting_.call.target + (extent.offset - part_of(setting_.layout.rank()).offset);
}

std::span<std::byte> ChainExchange::buffer(std::uint64_t round, bool is_sent) const {
  const std::size_t index = round % 2 + (is_sent ? 2 : 0);
  return setting_.scratch.subspan(index * piece_ * widening_, piece_ * widening_);
}

std::span<const std::byte> ChainExchange::give(std::uint64_t round, int place) const {
  const std::optional<Item> item = item_of(round, host_);
  if (!item) return {};
  const Extent extent = extent_of(*item, place);
  return {setting_.call.source + extent.offset, extent.bytes};
}

std::array<ChainExchange::Incoming, 2> ChainExchange::receives(std::uint64_t round) const {
  std::array<Incoming, 2> incoming;
  const std::optional<Item> item = item_of(round, host_);
  if (item && host_ > 0) {
    incoming[0] = {setting_.layout.rank() - per_host_,
                   buffer(round, false).first(sum_bytes(extent_of(*item, place_)))};
  }
  // The last host worked on it in the round before.
  const std::optional<Item> result = item_of(round, hosts_);
  if (result && result->owner_host == host_ && host_ != hosts_ - 1) {
    const Extent extent = extent_of(*result, place_);
    incoming[1] = {(hosts_ - 1) * per_host_ + place_, {target_of(extent), extent.bytes}};
  }
  return incoming;
}

ChainExchange::Outgoing ChainExchange::reduce(std::uint64_t round,
                                              std::span<const std::byte* const> sources) const {
  const std::optional<Item> item = item_of(round, host_);
  if (!item) return {};
  const Extent extent = extent_of(*item, place_);
  if (extent.bytes == 0) return {};
  const bool is_last = host_ == hosts_ - 1;
  const bool is_own = is_last && item->owner_host == host_;
  const std::span<std::byte> sent = buffer(round, true);
  const HostReduction part = {.target = is_own ? target_of(extent) : sent.data(),
                              .is_last = is_last,
                              .before = host_ > 0 ? buffer(round, false).data() : nullptr,
                              .sources = sources};
  const CollectiveCall& call = setting_.call;
  reduce_on_host(part, extent.bytes / size_of(call.dtype), call.dtype, call.op);
  if (is_own) return {};
  if (is_last) return {owner(*item, place_), sent.first(extent.bytes)};
  return {setting_.layout.rank() + per_host_, sent.first(sum_bytes(extent))};
}

CrossingBytes chain_crossing(const CollectiveCall& call, const HostLayout& layout) {
  const auto hosts = static_cast<std::uint64_t>(layout.hosts());
  const std::uint64_t of_host = call.size_bytes() / hosts;  // the parts that a host owns
  const std::uint64_t sums = call.size_bytes() * widening_of(call.dtype);
  const std::uint64_t results = (hosts - 1) * of_host;  // what the last host sends
  // A host between the first and the last receives sums, and the results of its own parts.
  const std::uint64_t received = sums + (hosts > 2 ? of_host : 0);
  return {.total = (hosts - 1) * sums + results, .busiest = std::max(received, results)};
}

CrossingBytes direct_crossing(const CollectiveCall& call, const HostLayout& layout) {
  const auto ranks = static_cast<std::uint64_t>(layout.size());
  CrossingBytes bytes;
  for (int host = 0; host < layout.hosts(); ++host) {
    const std::uint64_t own = layout.ranks_of(host).size();
    const std::uint64_t sent = call.size_bytes() / ranks * own * (ranks - own);
    bytes.total += sent;
    bytes.busiest = std::max(bytes.busiest, sent);
  }
  return bytes;
}

}  // namespace terrace
