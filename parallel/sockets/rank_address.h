#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "parallel/tcp_socket.h"

// Where the ranks of a job listen for each other, when no MPI connects them.
namespace terrace {

// A random number that rank 0 makes. A connection that does not know it is a stranger's.
using WorldId = std::array<std::uint64_t, 2>;
WorldId random_world_id();

// Equal for processes that can share memory: those of one boot of a machine, in one network
// namespace, with one host name.
using HostKey = std::array<std::uint64_t, 3>;
HostKey own_host_key();

// Returns the name of the Unix socket where a rank listens for ranks of its own host. It is in the
// abstract namespace, so it leaves no file.
std::string local_name_of(const WorldId& world, int rank);

// Where one rank listens: for ranks of its host under a name, else at an address. One of the two.
struct GateAddress {
  std::string local_name;
  TcpAddress tcp;
};
std::string text_of(const GateAddress& address);

// The place where a rank listens, as rank 0 tells it to all ranks. It is sent as it lies in memory.
struct RankPlace {
  HostKey host = {};
  std::int32_t port = 0;
  // As rank 0 has seen it. A size of 0: this rank is on the host of rank 0.
  TcpAddress address = {};
};

// The places of all ranks, as one of them sees them.
class RankAddresses {
 public:
  struct Setting {
    WorldId world = {};
    int rank = 0;
    TcpAddress first;        // where this rank has reached rank 0; unused on the host of rank 0
    int ranks_per_host = 0;  // see SocketSetting
  };
  // `places` has one for every rank.
  RankAddresses(const Setting& setting, std::vector<RankPlace> places);

  int size() const { return static_cast<int>(places_.size()); }
  // Hosts are numbered in the order of their lowest ranks.
  int host_of(int rank) const { return hosts_[static_cast<std::size_t>(rank)]; }
  int hosts() const;
  bool is_local(int rank) const { return host_of(rank) == host_of(setting_.rank); }
  GateAddress address_of(int rank) const;

 private:
  const Setting setting_;
  const std::vector<RankPlace> places_;
  std::vector<int> hosts_;  // by rank
};

}  // namespace terrace
