#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "parallel/rendezvous_message.h"
#include "parallel/tcp_socket.h"

namespace terrace {

// A process that looks for the host at the ports and stays until it has the blob. One thread.
class RendezvousGuest {
 public:
  // Looks for the host until the deadline, but at least once.
  RendezvousGuest(const RendezvousOptions& options, std::span<std::byte> blob,
                  TcpDeadline deadline);

  // Throws CommError with the host's message, or with the places where the host was looked for.
  void run();

 private:
  // A port where someone may answer.
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
  // Goes on with a visit that is ready. Returns the place if it is the host's.
  std::optional<Place> go_on(Visit& visit);
  bool say_hello(const TcpSocket& socket) const;
  std::optional<Place> judge(const Answer& answer, TcpSocket& socket);
  // Returns whether the blob has arrived.
  bool stay(const Place& place);
  void end(const Place& place) const;
  void check_version(const Answer& answer) const;
  [[noreturn]] void fail(const std::string& what) const;

  const RendezvousOptions& options_;
  const std::span<std::byte> blob_;
  const TcpDeadline deadline_;
  const std::vector<int> ports_;
  std::string news_;  // why the last try did not work
};

}  // namespace terrace
