#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "base/address_space.h"

namespace terrace {

// The resources of the host that this process may use, read once at the start.
struct HostLimits {
  std::size_t total_bytes = 0;      // MemTotal
  std::size_t available_bytes = 0;  // MemAvailable
  std::optional<std::size_t>
      cgroup_limit_bytes;               // the limit on the path to the root that leaves the least
  std::size_t cgroup_used_bytes = 0;    // by that cgroup, less its inactive file pages
  AddressSpace addresses;               // of this process
  std::size_t memlock_limit_bytes = 0;  // RLIMIT_MEMLOCK
  std::vector<int> cpus;                // in the affinity mask: OS indices; empty: not known
  int affinity_cpus = 1;                // how many processors the mask has
  std::optional<double> cgroup_cpus;    // cpu.max quota / period

  // Returns the smaller of the available bytes and the bytes that the cgroup leaves, for all
  // processes of the host.
  std::size_t usable_by_host_bytes() const;
  // Returns the smaller of that and the bytes that the limit on addresses leaves this process.
  std::size_t usable_bytes() const;
  // Returns the memory that exists for all processes, however much of it is used now.
  std::size_t whole_bytes() const;
  // Returns the smaller of the affinity mask and the cgroup quota rounded down, at least 1.
  int usable_cpus() const;
};

// Says how much can be used, for messages: "12.0 GiB free", "20.1 MiB left of the address space
// that ulimit -v allows (128 MiB)".
std::string describe_free(const HostLimits& limits);
// Says how more memory could be made usable.
std::string remedy_for_memory(const HostLimits& limits);

// Reads /proc and /sys/fs/cgroup (version 1 and 2) below `root`, which tests replace.
HostLimits read_host_limits(const std::string& root = "/");

}  // namespace terrace
