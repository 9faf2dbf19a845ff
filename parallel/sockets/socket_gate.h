#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "parallel/sockets/rank_address.h"
#include "parallel/tcp_socket.h"

// How two ranks get a connection. One of them calls at the gate of the other and says hello: who it
// is, whom it wants, and for which group of ranks. The gate answers, and keeps the connection until
// its rank takes it. A caller that says anything else is a stranger and is dropped without an
// answer.
namespace terrace {

// Names a group of ranks that have connections to each other. Every split has a number of its own.
using GroupId = std::uint64_t;

inline constexpr std::uint32_t kGateVersion = 1;

struct GateHello {
  std::array<char, 8> magic = {'T', 'E', 'R', 'R', 'R', 'A', 'N', '?'};
  std::uint32_t version = kGateVersion;
  std::int32_t from = 0;
  std::int32_t to = 0;
  std::int32_t reserved = 0;
  WorldId world = {};
  GroupId group = 0;
};
static_assert(sizeof(GateHello) == 48);

struct GateAnswer {
  std::array<char, 8> magic = {'T', 'E', 'R', 'R', 'R', 'A', 'N', '!'};
  WorldId world = {};
  std::int32_t rank = 0;
  std::int32_t reserved = 0;
};
static_assert(sizeof(GateAnswer) == 32);

// The time in which a caller must have said hello, and the number of callers that are listened to
// at the same time; more wait for their turn.
inline constexpr auto kHelloTime = std::chrono::seconds(5);
inline constexpr std::size_t kCallersMax = 64;

// The side that listens. Any thread.
class SocketGate {
 public:
  // Throws EnvironmentError where sockets cannot be made.
  SocketGate(const WorldId& world, int rank);

  int port() const { return listening_.port; }
  // Lets in the callers that have come. Never blocks.
  void look();
  // Returns the first connection of a rank for a group that was not taken yet; a closed socket if
  // there is none. A rank that has called at several addresses keeps one and hangs up the others.
  TcpSocket take(GroupId group, int from);
  // Adds the events that a thread which waits for callers has to wait for.
  void add_waits(std::vector<TcpWait>& waits) const;

 private:
  struct Caller {
    TcpSocket socket;
    GateHello hello;
    std::size_t received = 0;
    TcpDeadline until;
  };
  void accept_callers();
  // Returns whether the caller is done: let in or dropped.
  bool hear(Caller& caller);

  const WorldId world_;
  const int rank_;
  const TcpListening listening_;
  const TcpSocket local_;  // listens for ranks of this host
  std::mutex mutex_;
  std::vector<Caller> callers_;                                  // guarded by mutex_
  std::multimap<std::pair<GroupId, int>, TcpSocket> connected_;  // guarded by mutex_
};

// The side that calls. One thread.
class GateCall {
 public:
  enum class State : std::uint8_t { kWaits, kAnswered, kFailed };

  // Begins a call.
  GateCall(const GateAddress& address, const GateHello& hello);

  // Does what can be done now. Never blocks.
  State go_on();
  // Returns the event to wait for before the next go_on().
  TcpWait wait() const { return {socket_.descriptor(), !has_said_hello_}; }
  // Returns the connection. Called once it is answered.
  TcpSocket take() { return std::move(socket_); }

 private:
  const bool is_local_;
  const GateHello hello_;
  TcpSocket socket_;
  bool has_said_hello_ = false;
  GateAnswer answer_;
  std::size_t received_ = 0;
};

}  // namespace terrace
