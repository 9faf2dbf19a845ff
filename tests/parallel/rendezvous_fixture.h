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

// Ranks of a rendezvous, as threads and as connections that a test controls itself.
namespace terrace {

using RendezvousBlob = std::array<std::byte, 128>;

RendezvousBlob rendezvous_blob(int seed = 7);

// Returns the options of ranks of one process, at ports that no other test uses, below the ports
// that the system gives away.
RendezvousOptions rendezvous_of(int ranks);
RendezvousOptions as_rank(RendezvousOptions options, int rank);

// The blob that a rank got, or the error that it ended with.
struct Met {
  RendezvousBlob blob{};
  std::string error;
};

Met meet(const RendezvousOptions& options, int seed = 7);
// Runs the given ranks at the same time, each as a thread.
std::vector<Met> meet_as(const RendezvousOptions& options, const std::vector<int>& ranks,
                         int seed = 7);
void expect_met(const std::vector<Met>& all, int seed = 7);

// Returns a deadline so far off that only a failing test reaches it.
TcpDeadline in_a_while();
TcpSocket connect_to(int port);
// Returns a connection that has said hello as that rank, without the blob.
TcpSocket say_hello_as(int port, const RendezvousOptions& options);
// Does the same, and waits until it was welcomed.
TcpSocket come_as(int port, const RendezvousOptions& options);
// Returns whether the other side hangs up without an answer.
bool is_hung_up(const TcpSocket& socket);
std::span<const std::byte> bytes_of(const Hello& hello);

// The clock of a host: the real one, until a test lets time pass, or stops the clock between two
// looks of the host.
class TestClock {
 public:
  TcpDeadline now();
  // Lets hours pass. The host notices when something comes.
  void let_time_pass() { is_late_ = true; }
  // Stops the host at its next look at the clock.
  void hold() { is_held_ = true; }
  void wait_until_held() const;
  void release() { is_held_ = false; }

 private:
  std::atomic<bool> is_late_ = false;
  std::atomic<bool> is_held_ = false;
  std::atomic<bool> is_waiting_ = false;
};

// The host of a rendezvous, in a thread. It listens once this object is made.
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
