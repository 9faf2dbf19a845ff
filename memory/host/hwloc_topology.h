#pragma once

#include <hwloc.h>

#include <memory>

// hwloc's view of the machine, for the files that query hwloc directly. All other files use
// topology.h.
namespace terrace {

struct DestroyHwlocTopology {
  void operator()(hwloc_topology* topology) const { hwloc_topology_destroy(topology); }
};
using HwlocTopology = std::unique_ptr<hwloc_topology, DestroyHwlocTopology>;

// Returns the topology of this machine. Throws EnvironmentError if it cannot be read.
HwlocTopology load_hwloc_topology();

}  // namespace terrace
