#pragma once

#include <poll.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "parallel/tcp_socket.h"

namespace terrace {

// The news between the ranks of a job: that one of them has aborted, and that one is at its end.
// Every rank has a connection to every other for it. If one breaks without the news of an end, its
// rank has died, and that aborts the others. Any thread; nothing blocks on other ranks.
class SocketNews {
 public:
  // `links` has the connections by rank, a closed socket for this rank.
  SocketNews(int rank, std::vector<TcpSocket> links);

  // Tells all ranks. The first reason is kept.
  void abort(const std::string& reason);
  // Also looks for news.
  bool is_aborted();
  std::string reason() const;

  // Tells all ranks that this one has no more calls to make, and its exit code.
  void tell_end(int code);
  // Looks for news. Returns whether all other ranks have told their end or died.
  bool all_have_ended();
  // Returns the largest exit code that was told; at least 1 if a rank died.
  int largest_code() const;

 private:
  enum class Kind : std::uint32_t { kAbort, kEnd };
  struct Head {
    Kind kind = Kind::kAbort;
    std::uint32_t bytes = 0;
  };
  struct Link {
    TcpSocket socket;
    std::vector<std::byte> received;
    std::vector<std::byte> to_send;  // what the connection had no room for
    bool has_ended = false;
    bool is_closed = false;
  };
  // These are called with mutex_ held.
  void set_reason(const std::string& reason);
  void tell_all(Kind kind, std::span<const std::byte> content);
  void flush(Link& link);
  void look();
  void hear(int rank, Link& link);
  void understand(Link& link);

  const int rank_;
  std::atomic<bool> is_aborted_{false};
  mutable std::mutex mutex_;
  std::vector<Link> links_;      // by rank
  std::vector<pollfd> watched_;  // by rank; descriptor -1: not any more
  std::string reason_;
  int largest_code_ = 0;
};

}  // namespace terrace
