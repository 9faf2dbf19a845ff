#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace terrace {

// What this process may use of its host, read once at the start.
struct HostLimits {
  std::size_t total_bytes = 0;      // MemTotal
  std::size_t available_bytes = 0;  // MemAvailable
  std::optional<std::size_t>
      cgroup_limit_bytes;               // the limit on the path to the root that leaves the least
  std::size_t cgroup_used_bytes = 0;    // by that cgroup, less its inactive file pages
  std::size_t memlock_limit_bytes = 0;  // RLIMIT_MEMLOCK
  std::vector<int> cpus;                // in the affinity mask: OS indices; empty: not known
  int affinity_cpus = 1;                // how many
  std::optional<double> cgroup_cpus;    // cpu.max quota / period

  // The smaller of what is available and what the cgroup leaves.
  std::size_t usable_bytes() const;
  // The smaller of the affinity mask and the cgroup quota rounded down, at least 1.
  int usable_cpus() const;
};

// Reads /proc and /sys/fs/cgroup (version 1 and 2) below `root`, which tests replace.
HostLimits read_host_limits(const std::string& root = "/");

}  // namespace terrace
