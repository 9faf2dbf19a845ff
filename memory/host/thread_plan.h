#pragma once

#include <optional>
#include <string>
#include <vector>

#include "memory/host/host_limits.h"
#include "memory/host/topology.h"

namespace terrace {

// The number of ranks (processes or threads) that share a host, and the index of this one.
struct RanksOnHost {
  int count = 1;
  int index = 0;
};

// The numbers of threads that serve the lanes of a training run, and the NUMA nodes and processors
// that they use.
struct ThreadPlan {
  int compute = 1;
  int update = 1;
  int usable_cpus = 1;  // according to the affinity mask and the cgroup's quota
  // This rank's share of the NUMA nodes that have usable processors, as OS indices. Empty if the
  // machine has only one node.
  std::vector<int> nodes;
  // The processors that the threads are pinned to. Empty if the rank has all nodes of the affinity
  // mask: the threads may then run wherever the mask allows.
  std::vector<int> cpus;

  friend bool operator==(const ThreadPlan&, const ThreadPlan&) = default;
};

// Returns the plan of this rank. `asked` is the number of compute threads that the user has asked
// for; if unset, it is the number of processors that this rank may use. Updates run at the same
// time as compute and are bound by memory. They get half as many threads, at least one, but no more
// than can saturate the memory of the nodes: more would only take cores from compute. The ranks of
// a host share its processors evenly, unless their masks already divide them. Each gets some
// neighbouring NUMA nodes.
ThreadPlan plan_threads(std::optional<int> asked, const HostLimits& limits,
                        const Topology& topology, const RanksOnHost& ranks = RanksOnHost());

// Returns a line such as "threads: 16 for compute, 8 for updates; 16 processors may be used, on 1
// NUMA node".
std::string to_text(const ThreadPlan& plan);

}  // namespace terrace
