#pragma once

#include <optional>
#include <string>
#include <vector>

#include "memory/host/host_limits.h"
#include "memory/host/topology.h"

namespace terrace {

// Ranks that share a host, processes or threads, and which of them this one is.
struct RanksOnHost {
  int count = 1;
  int index = 0;
};

// How many threads serve the lanes of a training run, and near which memory.
struct ThreadPlan {
  int compute = 1;
  int update = 1;
  int usable_cpus = 1;  // by the affinity mask and the cgroup's quota
  // NUMA nodes (OS indices) with processors that may be used, of this rank's share of them; empty
  // where the machine has one: there is nothing to choose.
  std::vector<int> nodes;
  // The processors that the threads are kept on. Empty: where the mask lets them, because the rank
  // has all nodes of it.
  std::vector<int> cpus;

  friend bool operator==(const ThreadPlan&, const ThreadPlan&) = default;
};

// `asked`: threads that the user named for the compute; unset: as many as may be used. Updates run
// beside the compute and are bound by memory: they get half as many threads, one at least, and no
// more than fill the memory of the nodes. What is beyond would only take cores from the compute.
// Ranks of a host share its processors evenly, unless their masks do so already, and its NUMA nodes
// in neighbouring runs.
ThreadPlan plan_threads(std::optional<int> asked, const HostLimits& limits,
                        const Topology& topology, const RanksOnHost& ranks = RanksOnHost());

// "threads: 16 for compute, 8 for updates; 16 processors may be used, on 1 NUMA node"
std::string to_text(const ThreadPlan& plan);

}  // namespace terrace
