#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace terrace {

// Says which ranks of a group share a host, as seen by one of them, and through which rank the data
// of another host reaches this one. Hosts are numbered in the order of their lowest ranks; the
// ranks of a host are numbered, by their *place*, in rank order.
class HostLayout {
 public:
  // `keys` has a number for every rank, equal for the ranks of one host. `rank` is this rank.
  HostLayout(std::span<const int> keys, int rank);

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(host_of_.size()); }
  int hosts() const { return static_cast<int>(ranks_.size()); }
  int own_host() const { return host_of(rank_); }
  int host_of(int rank) const { return host_of_[static_cast<std::size_t>(rank)]; }
  int place_of(int rank) const { return place_of_[static_cast<std::size_t>(rank)]; }
  const std::vector<int>& ranks_of(int host) const {
    return ranks_[static_cast<std::size_t>(host)];
  }
  // The ranks of this host, ascending; this rank is one of them.
  const std::vector<int>& locals() const { return ranks_of(own_host()); }
  bool is_local(int rank) const { return host_of(rank) == own_host(); }

  // Data that all ranks need comes to a host once: one of its ranks *carries* the data of a rank of
  // another host, which means that it receives this data for all ranks of its host.
  //
  // Returns the rank of `host` that carries the data of `from`, a rank of another host.
  int carrier(int from, int host) const;
  // Returns how many ranks with lower numbers than `from` have the same carrier on this host.
  int carried_before(int from) const;
  // Returns the largest number of ranks whose data one rank carries. Hosts of a single rank do not
  // count.
  int carried_most() const;

  // Returns whether some host has several ranks, and some rank is on another host.
  bool has_shared_host() const;
  // Returns whether all hosts have the same number of ranks, which are neighbours in rank order:
  // then a sum in rank order can be taken host by host.
  bool is_in_rank_order() const;

 private:
  const int rank_;
  std::vector<int> host_of_;             // by rank
  std::vector<int> place_of_;            // by rank
  std::vector<std::vector<int>> ranks_;  // by host
};

}  // namespace terrace
