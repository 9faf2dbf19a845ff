#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "parallel/rendezvous_message.h"
#include "parallel/tcp_socket.h"

namespace terrace {

// The number of connections, beside the ranks', that are let in at the same time; more wait for
// their turn.
inline constexpr std::size_t kRendezvousStrangersMax = 64;

// The process that the others come to. It waits for all, tells them that all are here, and passes
// rank 0's blob on, whether that is its own or a guest's. One thread.
class RendezvousHost {
 public:
  using Now = std::function<TcpDeadline()>;

  // Takes the first port that is free; throws EnvironmentError where none is. `now` gives the time
  // that is compared with the deadline, whenever something happens.
  RendezvousHost(const RendezvousOptions& options, std::span<std::byte> blob, TcpDeadline deadline,
                 Now now = std::chrono::steady_clock::now);

  int port() const { return port_; }

  // Throws CommError naming the ranks that did not come, or did not stay. The ranks that are there
  // are told.
  void run();

 private:
  struct Guest {
    TcpSocket socket;
    std::vector<std::byte> received;
    TcpDeadline hello_until;  // by then it must have sent its whole hello
    int rank = -1;            // of a guest that was let in
    int attempt = 0;
    bool is_gone = false;
  };

  bool has_room() const;
  std::vector<int> missing() const;
  // Says which ranks have not come, and which have not stayed.
  std::string absence() const;
  void gather();
  void wait_for_news();
  void accept_guests();
  void hear(Guest& guest);
  void greet(Guest& guest, const Hello& hello);
  // Drops the guest that said before that it was this rank: it has come again by another
  // connection, or is its double.
  void replace(const Hello& hello);
  // Returns why a process cannot be let in; nothing if it can.
  std::optional<std::string> objection(const Hello& hello, AnswerKind& kind) const;
  void dismiss(Guest& guest, AnswerKind kind, const std::string& why);
  void pass_blob_on();
  [[noreturn]] void give_up(const std::string& what, const std::string& remedy);
  // Sends an answer to all guests that were let in.
  void tell_all(AnswerKind kind, std::span<const std::byte> bytes);

  const RendezvousOptions& options_;
  const std::span<std::byte> blob_;
  const Hello own_;
  const TcpDeadline deadline_;
  const Now now_;
  int port_ = 0;
  std::vector<TcpSocket> listeners_;
  std::vector<Guest> guests_;
  std::vector<bool> has_come_;  // by rank; such a rank may have left again
  std::string last_objection_;
  bool has_blob_;
};

}  // namespace terrace
