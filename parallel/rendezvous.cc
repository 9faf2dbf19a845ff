#include "parallel/rendezvous.h"

#include <algorithm>
#include <thread>

#include "base/check.h"
#include "parallel/rendezvous_guest.h"
#include "parallel/rendezvous_host.h"
#include "parallel/tcp_socket.h"

namespace terrace {
namespace {

using Clock = std::chrono::steady_clock;

// How many ports after the launcher's are tried.
constexpr int kPorts = 16;
constexpr auto kPause = std::chrono::milliseconds(50);

// Resolves a name again and again until the deadline: names may take a while to be known
// everywhere.
TcpResolved resolve_until(const std::string& host, TcpDeadline deadline) {
  for (;;) {
    TcpResolved resolved = resolve_tcp(host);
    if (resolved.problem.empty() || Clock::now() >= deadline) return resolved;
    std::this_thread::sleep_for(kPause);
  }
}

}  // namespace

RendezvousOptions rendezvous_options(const LaunchEnvironment& launch) {
  RendezvousOptions options;
  options.address = launch.master_address;
  options.port = launch.master_port;
  options.port_is_taken = launch.master_port_is_taken;
  options.job = launch.job;
  options.attempt = launch.attempt;
  options.size = launch.size;
  options.rank = launch.rank;
  options.local_rank = launch.local_rank;
  options.local_size = launch.local_size;
  return options;
}

std::vector<int> rendezvous_ports(const RendezvousOptions& options) {
  TERRACE_CHECK(options.port > 0 && options.port <= kTcpPortMax);
  std::vector<int> ports;
  if (!options.port_is_taken) ports.push_back(options.port);
  const int step = options.port + kPorts <= kTcpPortMax ? 1 : -1;
  for (int i = 1; i <= kPorts; ++i) ports.push_back(options.port + step * i);
  return ports;
}

// Rank 0 may be on another host, because the launcher's store need not be on the host of rank 0.
bool serves_rendezvous(const RendezvousOptions& options, TcpDeadline deadline) {
  if (options.local_rank != 0) return false;
  if (options.local_size == options.size) return true;
  const TcpResolved resolved = resolve_until(options.address, deadline);
  return std::ranges::any_of(resolved.addresses, is_own_address);
}

void share_from_first_rank(const RendezvousOptions& options, std::span<std::byte> blob) {
  TERRACE_CHECK_LE(blob.size(), kRendezvousBlobMax);
  TERRACE_CHECK_LT(options.rank, options.size);
  if (options.size == 1) return;
  const TcpDeadline deadline = Clock::now() + options.timeout;
  if (serves_rendezvous(options, deadline)) {
    RendezvousHost(options, blob, deadline).run();
  } else {
    RendezvousGuest(options, blob, deadline).run();
  }
}

}  // namespace terrace
