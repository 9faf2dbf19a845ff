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
      cgroup_limit_bytes;               // of our cgroup or the ancestor that leaves the least
  std::size_t cgroup_used_bytes = 0;    // by that cgroup, without its inactive file pages
  AddressSpace addresses;               // of this process
  std::size_t memlock_limit_bytes = 0;  // RLIMIT_MEMLOCK
  std::vector<int> cpus;                // the affinity mask, as OS indices; empty: not known
  int affinity_cpus = 1;                // the number of processors in the mask
  std::optional<double> cgroup_cpus;    // cpu.max quota / period

  // Returns the smaller of the available bytes and the bytes that the cgroup leaves. All processes
  // of the host share this number of bytes.
  std::size_t usable_by_host_bytes() const;
  // Returns the smaller of usable_by_host_bytes() and the bytes that the limit on addresses leaves
  // to this process.
  std::size_t usable_bytes() const;
  // Returns the size of the memory that all processes share, regardless of how much of it is in
  // use.
  std::size_t whole_bytes() const;
  // Returns the number of processors in the affinity mask, or the cgroup's quota, rounded down, if
  // that is smaller; at least 1.
  int usable_cpus() const;
};

// Returns a text for messages that says how much can be used: "12.0 GiB free", or "20.1 MiB left of
// the address space that ulimit -v allows (128 MiB)".
std::string describe_free(const HostLimits& limits);
// Returns a text that says how to make more memory usable.
std::string remedy_for_memory(const HostLimits& limits);

// Reads the limits from /proc and /sys/fs/cgroup (versions 1 and 2) below `root`. Tests pass
// another `root`.
HostLimits read_host_limits(const std::string& root = "/");

}  // namespace terrace
