#pragma once

#include <optional>
#include <string>
#include <vector>

#include "memory/host/host_limits.h"
#include "memory/host/topology.h"

namespace terrace {

// The ranks (processes or threads) that share a host, and which of them this one is.
struct RanksOnHost {
  int count = 1;
  int index = 0;
};

// The number of threads that serve the lanes of a training run, and the memory they are near to.
struct ThreadPlan {
  int compute = 1;
  int update = 1;
  int usable_cpus = 1;  // by the affinity mask and the cgroup's quota
  // The NUMA nodes (OS indices) with usable processors, in this rank's share of them. Empty where
  // the machine has one node: there is nothing to choose.
  std::vector<int> nodes;
  // The processors that the threads are kept on. Empty: wherever the mask lets them run, because
  // the rank has all nodes of the mask.
  std::vector<int> cpus;

  friend bool operator==(const ThreadPlan&, const ThreadPlan&) = default;
};

// `asked` is the number of compute threads that the user named; if unset, as many as may be used.
// Updates run beside the compute and are bound by memory. They get half as many threads, at least
// one, and no more than saturate the memory of the nodes: more would only take cores from the
// compute. Ranks of a host share its processors evenly, unless their masks do so already, and share
// its NUMA nodes in runs of neighbours.
ThreadPlan plan_threads(std::optional<int> asked, const HostLimits& limits,
                        const Topology& topology, const RanksOnHost& ranks = RanksOnHost());

// Returns a line such as "threads: 16 for compute, 8 for updates; 16 processors may be used, on 1
// NUMA node".
std::string to_text(const ThreadPlan& plan);

}  // namespace terrace
