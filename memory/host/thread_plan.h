#pragma once

#include <optional>
#include <string>

#include "memory/host/host_limits.h"
#include "memory/host/topology.h"

namespace terrace {

// How many threads serve the lanes of a training run.
struct ThreadPlan {
  int compute = 1;
  int update = 1;
  int usable_cpus = 1;  // by the affinity mask and the cgroup's quota
  int numa_nodes = 1;   // with processors

  friend bool operator==(const ThreadPlan&, const ThreadPlan&) = default;
};

// `asked`: threads that the user named for the compute; unset: as many as may be used. Updates run
// beside the compute and are bound by memory: they get half as many threads, one at least, and no
// more than fill the memory of the nodes. What is beyond would only take cores from the compute.
// `ranks`: so many processes' or threads' plans share the host evenly.
ThreadPlan plan_threads(std::optional<int> asked, const HostLimits& limits,
                        const Topology& topology, int ranks = 1);

// "threads: 16 for compute, 8 for updates; 16 processors may be used, on 1 NUMA node"
std::string to_text(const ThreadPlan& plan);

}  // namespace terrace
