#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "parallel/launch_environment.h"

// A meeting place where ranks that no MPI connects get one blob of bytes from the first rank: under
// torchrun, NCCL's unique id. docs/parallel.md says which process serves, and on which port.
namespace terrace {

struct RendezvousOptions {
  // The address, the port, the job and the size are the same on all ranks.
  std::string address = "127.0.0.1";
  int port = 29500;
  bool port_is_taken = false;  // the launcher listens there itself
  std::string job;             // tells jobs apart that use the same address and port
  int attempt = 0;             // for messages: launchers do not agree on it between hosts
  int size = 1;
  int rank = 0;  // this process
  int local_rank = 0;
  int local_size = 1;
  std::chrono::milliseconds timeout = std::chrono::seconds(60);
  // A stranger: a connection that has not said who it is after this time.
  std::chrono::milliseconds hello_time = std::chrono::seconds(5);
};

RendezvousOptions rendezvous_options(const LaunchEnvironment& launch);

// Returns the ports where a rendezvous may be, in the order in which the serving process tries to
// get them and the others look for it.
std::vector<int> rendezvous_ports(const RendezvousOptions& options);

inline constexpr std::size_t kRendezvousBlobMax = 4096;

// Returns whether this is the process that the others come to: the first process of the host that
// has the address. Waits until the deadline for a name that is not known yet.
bool serves_rendezvous(const RendezvousOptions& options,
                       std::chrono::steady_clock::time_point deadline);

// Called by all ranks at about the same time, with blobs of one size, at most kRendezvousBlobMax.
// On return, `blob` has the bytes of rank 0 on every rank, and all ranks have confirmed that. If
// one rank does not, all throw; only if the host's last message is lost on its way do some ranks
// throw and others not.
//
// The timeout counts from the call. A rank that has found the host waits until the host's timeout,
// which counts from the host's own call, and 5 s more. Resolving a name may take as long as the
// system's resolver does, in addition.
//
// Throws CommError naming the ranks that did not come, or saying who refused this one and why.
// Throws EnvironmentError where the ports are all in use, or sockets cannot be made. Any thread; at
// most one call for each rank.
void share_from_first_rank(const RendezvousOptions& options, std::span<std::byte> blob);

}  // namespace terrace
