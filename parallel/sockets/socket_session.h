#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "parallel/communicator.h"
#include "parallel/rendezvous.h"

// The ranks of a job without MPI, such as torchrun's: one process each, connected over TCP between
// hosts, and by shared memory and Unix sockets within a host. docs/parallel.md explains it.
namespace terrace {

struct SocketSetting {
  RendezvousOptions meeting;
  // The time for the connections of a group of ranks, once they have met.
  std::chrono::milliseconds timeout = std::chrono::seconds(60);
  // 0: ranks share memory where their processes can. Otherwise every group of this many ranks is
  // treated as a host of its own, so that messages between hosts can be tested on one host.
  int ranks_per_host = 0;
  // Whether ranks read each other's memory where all ranks of a communicator are on one host and
  // the system allows it. Otherwise they exchange data there only through shared windows.
  bool reads_peers = true;

  // Waits at most this long for ranks at the start, if that is shorter.
  void limit_time(std::chrono::nanoseconds longest);
};

// Returns the setting for a rank that a launcher started. Throws EnvironmentError where several
// hosts have ranks, but no variable says where they may meet.
SocketSetting socket_setting(const LaunchEnvironment& launch);

struct SocketWorld;

// One rank's part in such a job. There is no progress thread: every call makes its own progress.
class SocketSession {
 public:
  // Meets the other ranks. Throws CommError naming the ranks that do not come or cannot be reached,
  // and EnvironmentError where this process lacks something.
  explicit SocketSession(const SocketSetting& setting);
  // Ends the session, if end() has not done so.
  ~SocketSession();
  SocketSession(const SocketSession&) = delete;
  SocketSession& operator=(const SocketSession&) = delete;

  int rank() const;
  int size() const;
  // Returns how many hosts the ranks are on.
  int hosts() const;
  // Makes a communicator of all ranks. All ranks make their communicators in the same order. All
  // communicators of a session, and what is split off from them, are aborted together, and end
  // before the session.
  std::unique_ptr<Communicator> make_world(const std::string& name,
                                           const CommunicatorOptions& options = {});
  // Waits for the other ranks' sessions to end too, and returns the largest `code` of all ranks, so
  // that all processes exit with the same code. If others do not come within 20 s, or 3 s after an
  // abort, or have died, the result is at least 1. Called once, when all communicators are gone.
  int end(int code);

 private:
  std::shared_ptr<SocketWorld> world_;
  bool has_ended_ = false;
};

}  // namespace terrace
