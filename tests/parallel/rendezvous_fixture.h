#pragma once

#include <array>
#include <atomic>
#include <exception>
#include <string>
#include <thread>
#include <vector>

#include "parallel/rendezvous.h"
#include "parallel/rendezvous_host.h"
#include "parallel/rendezvous_message.h"
#include "parallel/tcp_socket.h"

// Ranks of a rendezvous as threads, and as connections that a test holds in its hands.
namespace terrace {

using RendezvousBlob = std::array<std::byte, 128>;

RendezvousBlob rendezvous_blob(int seed = 7);

// Of ranks of one process, at ports that nobody else has, below those that the system gives away.
RendezvousOptions rendezvous_of(int ranks);
RendezvousOptions as_rank(RendezvousOptions options, int rank);

// What a rank got, or the error that it ended with.
struct Met {
  RendezvousBlob blob{};
  std::string error;
};

Met meet(const RendezvousOptions& options, int seed = 7);
// The given ranks at once, each as a thread.
std::vector<Met> meet_as(const RendezvousOptions& options, const std::vector<int>& ranks,
                         int seed = 7);
void expect_met(const std::vector<Met>& all, int seed = 7);

// Far off: only a test that fails gets there.
TcpDeadline in_a_while();
TcpSocket connect_to(int port);
// A connection that has said hello as that rank, without the blob.
TcpSocket say_hello_as(int port, const RendezvousOptions& options);
// And was welcomed.
TcpSocket come_as(int port, const RendezvousOptions& options);
// Whether the other side hangs up without a word.
bool is_hung_up(const TcpSocket& socket);
std::span<const std::byte> bytes_of(const Hello& hello);

// The clock of a host: the real one, until a test lets time pass or stops it between two looks.
class TestClock {
 public:
  TcpDeadline now();
  // Hours. The host sees it when something comes.
  void let_time_pass() { is_late_ = true; }
  // The host goes on no further than to its next look at the clock.
  void hold() { is_held_ = true; }
  void wait_until_held() const;
  void release() { is_held_ = false; }

 private:
  std::atomic<bool> is_late_ = false;
  std::atomic<bool> is_held_ = false;
  std::atomic<bool> is_waiting_ = false;
};

// The one that serves: it listens once this is made.
class HostThread {
 public:
  explicit HostThread(const RendezvousOptions& options, TestClock* clock = nullptr);
  ~HostThread();

  int port() const { return host_.port(); }
  Met finish();

 private:
  RendezvousOptions options_;
  Met met_;
  std::exception_ptr failure_;
  RendezvousHost host_;
  std::thread thread_;
};

}  // namespace terrace
