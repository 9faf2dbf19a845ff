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

// Reads the topology with hwloc. If the system refuses sched_getaffinity, hwloc would repeat that
// call forever, so the topology is read from the C library and /proc/cpuinfo instead; all memory
// then counts as one node. Throws EnvironmentError if the topology cannot be read.
Topology read_topology();

}  // namespace terrace
