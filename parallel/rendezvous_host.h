#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "parallel/rendezvous_message.h"
#include "parallel/tcp_socket.h"

namespace terrace {

// The process that the others come to: it waits for all, tells them that they are all here, and
// passes rank 0's blob on, its own or another's. One thread.
class RendezvousHost {
 public:
  // Takes the first port that is free. Throws EnvironmentError where none is.
  RendezvousHost(const RendezvousOptions& options, std::span<std::byte> blob);

  // Throws CommError naming the ranks that did not come.
  void run();

 private:
  struct Guest {
    TcpSocket socket;
    std::vector<std::byte> received;
    TcpDeadline hello_until;  // it has said all that it has to say
    int rank = -1;            // of those that are welcome
    bool is_gone = false;
    bool has_confirmed = false;
  };

  bool all_have_come() const;
  std::vector<int> missing() const;
  void wait_for_news(TcpDeadline deadline);
  void accept_guests();
  void hear(Guest& guest);
  void greet(Guest& guest, const Hello& hello);
  // Why a process cannot be let in; nothing where it can.
  std::optional<std::string> objection(const Hello& hello, AnswerKind& kind) const;
  void dismiss(Guest& guest, AnswerKind kind, const std::string& why);
  void pass_blob_on();
  [[noreturn]] void give_up(const std::string& what);

  const RendezvousOptions& options_;
  const std::span<std::byte> blob_;
  const Hello own_;
  const TcpDeadline deadline_;
  std::vector<TcpSocket> listeners_;
  std::vector<Guest> guests_;
  std::string last_objection_;
  bool has_blob_;
};

}  // namespace terrace
