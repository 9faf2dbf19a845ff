#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "parallel/mpi/transport.h"
#include "parallel/tcp_socket.h"

namespace terrace {

// The messages between this rank and another one of a group, over a connection. They arrive in the
// order of their sends: a message for which no receive is posted yet waits, and all behind it. So
// both ranks have to post in the same order, as ranks do that make the same calls. Receives with
// different tags may be posted in any order. One thread.
class MessageStream {
 public:
  MessageStream() = default;  // to this rank itself: nothing is ever posted
  explicit MessageStream(TcpSocket socket);

  // The bytes must stay valid until the message is done, or drop().
  void send(MessageSet set, MessageTag tag, std::span<const std::byte> bytes);
  void receive(MessageSet set, MessageTag tag, std::span<std::byte> bytes);

  // Sends and receives what can be moved now. Never blocks. Throws CommError if a message has
  // another size than its receive; the text does not name the ranks.
  void make_progress();
  // Returns whether a message is not done.
  bool has_work() const { return !sends_.empty() || !unconfirmed_.empty() || !receives_.empty(); }
  int pending(MessageSet set) const;
  int pending_receives(MessageSet set) const;
  // Returns whether the other side has hung up, or the connection failed.
  bool is_closed() const { return is_closed_; }
  // Forgets all messages. Nothing is sent or received any more.
  void drop();

 private:
  // Precedes the bytes of a message. The tag kConfirmation, which has no bytes, says that a message
  // of kPairCall was received.
  struct Head {
    std::uint32_t tag = 0;
    std::uint32_t reserved = 0;
    std::uint64_t bytes = 0;
  };
  struct Outgoing {
    MessageSet set = MessageSet::kCall;
    std::uint32_t tag = 0;
    std::span<const std::byte> bytes;
  };
  struct Incoming {
    MessageSet set = MessageSet::kCall;
    std::uint32_t tag = 0;
    std::span<std::byte> bytes;
  };
  void send_some();
  void receive_some();
  // Receives bytes into a part of a message; returns whether it is whole.
  bool fill(std::span<std::byte> part, std::size_t& received);
  // Returns whether the bytes after the head have a place.
  bool find_receive();
  void end_message();

  TcpSocket socket_;
  bool is_closed_ = false;
  bool is_dropped_ = false;
  std::vector<Outgoing> sends_;          // in order
  std::size_t sent_ = 0;                 // of the first one and its head
  std::vector<MessageSet> unconfirmed_;  // of the sent messages of kPairCall, in order
  std::vector<Incoming> receives_;       // in order
  Head head_;                            // of the message that is arriving
  std::size_t head_received_ = 0;
  std::size_t received_ = 0;   // of its bytes
  std::ptrdiff_t place_ = -1;  // of its receive; -1: not found yet
};

}  // namespace terrace
