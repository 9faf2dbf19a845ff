#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "parallel/mpi/transport.h"
#include "parallel/sockets/rank_address.h"
#include "parallel/sockets/socket_gate.h"
#include "parallel/sockets/socket_news.h"

namespace terrace {

// The state that all transports of a session share. Only the gate, the news and the counts change
// once the session has begun.
struct SocketWorld {
  WorldId id = {};
  int rank = 0;
  std::unique_ptr<SocketGate> gate;
  std::unique_ptr<RankAddresses> addresses;
  std::unique_ptr<SocketNews> news;
  std::chrono::milliseconds timeout{0};  // for the connections of a group
  bool reads_peers = true;
  std::atomic<std::uint32_t> groups{0};  // that this rank has numbered
  std::atomic<std::uint32_t> worlds{0};  // groups of all ranks so far; the same on all ranks

  // Returns a number for a group. `leader` is a rank of it that counts, or -1 for a group of all
  // ranks.
  static GroupId group_id(int leader, std::uint32_t count) {
    return static_cast<std::uint64_t>(leader + 1) << 32 | count;
  }
};

// Makes this rank's transport of a group: connections to the other members, shared memory with the
// members of its host, and the knowledge whether they can read each other's memory. All members
// call it, with the same list of ranks of the whole job, in the order of their ranks in the group.
// Throws CommError naming the ranks that do not come.
std::unique_ptr<Transport> make_socket_transport(std::shared_ptr<SocketWorld> world,
                                                 std::vector<int> members, GroupId group);

}  // namespace terrace
