#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "parallel/rendezvous_message.h"
#include "parallel/tcp_socket.h"

namespace terrace {

// A process that looks for the host among the ports and stays until it has the blob. One thread.
class RendezvousGuest {
 public:
  // Looks for the host until the deadline, and once at least.
  RendezvousGuest(const RendezvousOptions& options, std::span<std::byte> blob,
                  TcpDeadline deadline);

  // Throws CommError with what the host said, or where it was looked for.
  void run();

 private:
  // A port where somebody may answer.
  struct Visit {
    TcpSocket socket;
    AnswerReader answer;
    bool has_said_hello = false;
  };
  struct Place {
    TcpSocket socket;
    TcpDeadline until;  // by the host's clock, and a little more
  };

  // Asks at all ports of an address at the same time.
  std::optional<Place> look_at(const TcpAddress& address);
  // Goes on with a visit that is ready. A place where it is the host's.
  std::optional<Place> go_on(Visit& visit);
  bool say_hello(const TcpSocket& socket) const;
  std::optional<Place> judge(const Answer& answer, TcpSocket& socket);
  // Whether the blob is here.
  bool stay(const Place& place);
  void end(const Place& place) const;
  void check_version(const Answer& answer) const;
  [[noreturn]] void fail(const std::string& what) const;

  const RendezvousOptions& options_;
  const std::span<std::byte> blob_;
  const TcpDeadline deadline_;
  const std::vector<int> ports_;
  std::string news_;  // why it did not work the last time
};

}  // namespace terrace
