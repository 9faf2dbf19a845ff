#include "parallel/mpi/host_layout.h"

#include <algorithm>
#include <map>

namespace terrace {

HostLayout::HostLayout(std::span<const int> keys, int rank) : rank_(rank) {
  std::map<int, int> host_of_key;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    const auto [entry, is_new] = host_of_key.try_emplace(keys[i], hosts());
    if (is_new) ranks_.emplace_back();
    std::vector<int>& ranks = ranks_[static_cast<std::size_t>(entry->second)];
    host_of_.push_back(entry->second);
    place_of_.push_back(static_cast<int>(ranks.size()));
    ranks.push_back(static_cast<int>(i));
  }
}

int HostLayout::carrier(int from, int host) const {
  const std::vector<int>& ranks = ranks_of(host);
  return ranks[static_cast<std::size_t>(place_of(from)) % ranks.size()];
}

int HostLayout::carried_before(int from) const {
  int before = 0;
  for (int other = 0; other < from; ++other) {
    if (!is_local(other) && carrier(other, own_host()) == carrier(from, own_host())) ++before;
  }
  return before;
}

int HostLayout::carried_most() const {
  std::vector<int> carried(host_of_.size());
  for (int host = 0; host < hosts(); ++host) {
    if (ranks_of(host).size() == 1) continue;
    for (int from = 0; from < size(); ++from) {
      if (host_of(from) != host) ++carried[static_cast<std::size_t>(carrier(from, host))];
    }
  }
  return *std::ranges::max_element(carried);
}

bool HostLayout::has_shared_host() const { return hosts() > 1 && hosts() < size(); }

bool HostLayout::is_in_rank_order() const {
  const int per_host = size() / hosts();
  if (per_host * hosts() != size()) return false;
  for (int rank = 0; rank < size(); ++rank) {
    if (host_of(rank) != rank / per_host) return false;
  }
  return true;
}

}  // namespace terrace
