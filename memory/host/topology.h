#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace terrace {

struct NumaNode {
  int os_index = 0;
  std::size_t memory_bytes = 0;
  std::vector<int> cpus;  // OS indices
};

struct Topology {
  std::string cpu_model;
  int cores = 0;
  int hardware_threads = 0;
  std::size_t l2_bytes = 0;  // of one core; 0 if the machine does not say
  std::size_t l3_bytes = 0;  // of the first package; 0 if the machine does not say
  std::vector<NumaNode> numa_nodes;
};

// Reads the topology by hwloc. Where the system refuses sched_getaffinity, for which hwloc would
// then ask for ever, reads it from the C library and /proc/cpuinfo; all memory is one node then.
// Throws EnvironmentError if the topology cannot be read.
Topology read_topology();

}  // namespace terrace
