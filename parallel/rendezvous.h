#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "parallel/launch_environment.h"

// Where ranks that no MPI connects get one blob of bytes from the first of them: under torchrun,
// NCCL's unique id. docs/parallel.md says which process serves, and on which port.
namespace terrace {

struct RendezvousOptions {
  std::string address = "127.0.0.1";  // the same on all ranks, as is what follows
  int port = 29500;
  bool port_is_taken = false;  // the launcher listens there itself
  std::string job;             // tells jobs apart that use the same address and port
  int attempt = 0;             // and the restarts of one
  int size = 1;
  int rank = 0;  // this process
  int local_rank = 0;
  int local_size = 1;
  std::chrono::milliseconds timeout = std::chrono::seconds(60);
};

RendezvousOptions rendezvous_options(const LaunchEnvironment& launch);

// Ports where a rendezvous may be, in the order in which the one who serves tries to get them and
// the others look for it.
std::vector<int> rendezvous_ports(const RendezvousOptions& options);

inline constexpr std::size_t kRendezvousBlobMax = 4096;

// Called by all ranks at about the same time, with blobs of one size, at most kRendezvousBlobMax:
// on return `blob` has the bytes of rank 0 on every rank. No call lasts much longer than the
// timeout.
// Throws CommError naming the ranks that did not come, or who refused this one and why;
// EnvironmentError where the ports are all in use. Any thread; no more than one call for each rank.
void share_from_first_rank(const RendezvousOptions& options, std::span<std::byte> blob);

}  // namespace terrace
