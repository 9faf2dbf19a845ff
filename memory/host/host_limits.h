#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "base/address_space.h"

namespace terrace {

// What this process may use of its host, read once at the start.
struct HostLimits {
  std::size_t total_bytes = 0;      // MemTotal
  std::size_t available_bytes = 0;  // MemAvailable
  std::optional<std::size_t>
      cgroup_limit_bytes;               // the limit on the path to the root that leaves the least
  std::size_t cgroup_used_bytes = 0;    // by that cgroup, less its inactive file pages
  AddressSpace addresses;               // of this process
  std::size_t memlock_limit_bytes = 0;  // RLIMIT_MEMLOCK
  std::vector<int> cpus;                // in the affinity mask: OS indices; empty: not known
  int affinity_cpus = 1;                // how many
  std::optional<double> cgroup_cpus;    // cpu.max quota / period

  // The smaller of what is available and what the cgroup leaves, for all processes of the host.
  std::size_t usable_by_host_bytes() const;
  // The smaller of that and what the limit on addresses leaves this process.
  std::size_t usable_bytes() const;
  // The memory that there is for all processes, whatever is used of it now.
  std::size_t whole_bytes() const;
  // The smaller of the affinity mask and the cgroup quota rounded down, at least 1.
  int usable_cpus() const;
};

// Says what can be used, for messages: "12.0 GiB free", "20.1 MiB left of the address space that
// ulimit -v allows (128 MiB)".
std::string describe_free(const HostLimits& limits);
// Says how more than that could be used.
std::string remedy_for_memory(const HostLimits& limits);

// Reads /proc and /sys/fs/cgroup (version 1 and 2) below `root`, which tests replace.
HostLimits read_host_limits(const std::string& root = "/");

}  // namespace terrace
