#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "parallel/sockets/rank_address.h"
#include "parallel/sockets/socket_gate.h"
#include "parallel/tcp_socket.h"

namespace terrace {

// A rank's part in making connections between all ranks of a group. The rank with the higher number
// calls the one with the lower number.
struct SocketMeeting {
  SocketGate& gate;
  const RankAddresses& addresses;
  WorldId world = {};
  int rank = 0;  // this one's
  GroupId group = 0;
  TcpDeadline deadline;
  // Throws if waiting is pointless, because a rank has failed.
  std::function<void()> check = [] {};

  // Returns a connection to each of `members`, which are ranks of the whole job; none to this rank
  // itself. All of them call it. Throws CommError naming the ranks that were not reached or did not
  // call.
  std::vector<TcpSocket> connect(std::span<const int> members) const;
};

// Calls at several addresses at the same time, and returns the first connection that is answered; a
// closed socket if there is none before the deadline. `at` is then the place of its address.
TcpSocket call_one_of(std::span<const GateAddress> addresses, const GateHello& hello,
                      TcpDeadline deadline, std::size_t& at);

// Throws the error of ranks that do not connect. `where` says for each how it was looked for.
[[noreturn]] void fail_to_connect(std::span<const std::string> where);

}  // namespace terrace
