#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "parallel/communicator.h"
#include "parallel/mpi/host_layout.h"

namespace terrace {

// A reduce_scatter, or the first half of an all_reduce, of ranks on several hosts, as a chain. The
// first host reduces the data of its own ranks and sends the result to the second, which continues
// with the data of its ranks, and so on. Numbers are added in the order of the ranks,
// so the sums have the bits of an exchange between all ranks. The last host sends the result to the
// rank whose part it is. So a part crosses between hosts once for each host after the first, and
// once more if it belongs to another host than the last; in an exchange between all ranks it
// crosses once for each rank that is on another host than its owner.
//
// Part r of the data belongs to rank r, and is cut into segments. An *item* is the k-th segment of
// the part of every rank of one host. On every host, the rank at place i reduces the segment that
// belongs to the rank at place i of that host. In round t the host h works on item t - h, so that
// all hosts work at the same time. HostLayout::is_in_rank_order() must hold. This class says what
// is in each round; the staged communicator moves it.
//
// The scratch space has four buffers: what a rank receives, and what it sends, in even and in odd
// rounds. A receive is posted one round ahead. A buffer that was sent is free two rounds later.
class ChainExchange {
 public:
  struct Setting {
    CollectiveCall call;
    const HostLayout& layout;
    std::size_t slot_bytes = 0;  // room for what a rank gives to the others of its host in a round
    std::span<std::byte> scratch;
  };
  // A message to or from a rank of another host; empty bytes: there is none.
  struct Incoming {
    int from = -1;
    std::span<std::byte> bytes;
  };
  struct Outgoing {
    int to = -1;
    std::span<const std::byte> bytes;
  };

  // Refers to the layout, the scratch space and the data of the call.
  explicit ChainExchange(const Setting& setting);

  std::uint64_t rounds() const { return items_ + static_cast<std::uint64_t>(hosts_); }
  // The room of a piece for one rank of this host; a multiple of 64 bytes.
  std::size_t room() const { return piece_; }
  // Returns what this rank gives in a round to the rank of its host at `place`, which may be
  // itself.
  std::span<const std::byte> give(std::uint64_t round, int place) const;
  // Returns what arrives before this rank can work in a round: the sums of the host before it, and
  // a result of the last host.
  std::array<Incoming, 2> receives(std::uint64_t round) const;
  // Reduces this rank's segment of the round. `sources` are the pieces that the ranks of this host
  // give to this one, by place. Returns what is then sent.
  Outgoing reduce(std::uint64_t round, std::span<const std::byte* const> sources) const;

 private:
  struct Item {
    int owner_host = 0;
    std::uint64_t segment = 0;
  };
  struct Extent {
    std::size_t offset = 0;  // in the data
    std::size_t bytes = 0;
  };
  // Returns the item on which `host` works in a round; nothing before its first and after its last.
  std::optional<Item> item_of(std::uint64_t round, int host) const;
  int owner(const Item& item, int place) const { return item.owner_host * per_host_ + place; }
  Extent part_of(int rank) const;
  Extent extent_of(const Item& item, int place) const;
  std::size_t sum_bytes(const Extent& extent) const;
  std::byte* target_of(const Extent& extent) const;
  std::span<std::byte> buffer(std::uint64_t round, bool is_sent) const;

  const Setting setting_;
  const int hosts_;
  const int per_host_;
  const int host_;
  const int place_;
  const std::size_t widening_;  // bytes of a sum for each byte of data
  const std::size_t piece_;
  const std::uint64_t items_;
};

// The bytes that cross between hosts in a reduction, by the chain or between all ranks.
struct CrossingBytes {
  std::uint64_t total = 0;
  std::uint64_t busiest = 0;  // the most bytes that any host sends, or receives
};
CrossingBytes chain_crossing(const CollectiveCall& call, const HostLayout& layout);
CrossingBytes direct_crossing(const CollectiveCall& call, const HostLayout& layout);

}  // namespace terrace
