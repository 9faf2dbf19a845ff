#include "memory/host/thread_plan.h"

#include <fmt/format.h>

#include <algorithm>

namespace terrace {
namespace {

// In measurements, one thread streams 15 to 30 GB/s through an update; the memory of a node
// delivers about 250 GB/s at most.
constexpr int kUpdateThreadsPerNode = 12;

// Returns the nodes that have usable processors. Each lists only the processors that the mask
// allows.
std::vector<NumaNode> usable_nodes(const HostLimits& limits, const Topology& topology) {
  std::vector<NumaNode> nodes;
  for (NumaNode node : topology.numa_nodes) {
    if (!limits.cpus.empty()) {
      std::erase_if(node.cpus,
                    [&](int cpu) { return !std::ranges::binary_search(limits.cpus, cpu); });
    }
    if (!node.cpus.empty()) nodes.push_back(std::move(node));
  }
  return nodes;
}

// Sets this rank's nodes. Also sets its processors, unless it has all the nodes.
void take_nodes(ThreadPlan& plan, const std::vector<NumaNode>& nodes, const RanksOnHost& ranks) {
  const auto count = nodes.size();
  const std::size_t first =
      count * static_cast<std::size_t>(ranks.index) / static_cast<std::size_t>(ranks.count);
  const std::size_t end =
      count * static_cast<std::size_t>(ranks.index + 1) / static_cast<std::size_t>(ranks.count);
  for (std::size_t i = first; i < std::max(end, first + 1); ++i) {
    plan.nodes.push_back(nodes[i].os_index);
    plan.cpus.insert(plan.cpus.end(), nodes[i].cpus.begin(), nodes[i].cpus.end());
  }
  if (plan.nodes.size() == count) plan.cpus.clear();
}

}  // namespace

ThreadPlan plan_threads(std::optional<int> asked, const HostLimits& limits,
                        const Topology& topology, const RanksOnHost& ranks) {
  ThreadPlan plan;
  plan.usable_cpus = limits.usable_cpus();
  // If the launcher has bound the ranks to processors, these are already divided. A quota, however,
  // applies to all ranks together.
  const bool is_shared_out =
      ranks.count > 1 && limits.affinity_cpus * ranks.count <= topology.hardware_threads;
  const int by_mask = is_shared_out ? limits.affinity_cpus : limits.affinity_cpus / ranks.count;
  const int share =
      limits.cgroup_cpus ? std::min(by_mask, plan.usable_cpus / ranks.count) : by_mask;
  plan.compute = std::max(1, asked.value_or(share));
  const std::vector<NumaNode> nodes = usable_nodes(limits, topology);
  if (topology.numa_nodes.size() > 1 && !nodes.empty()) {
    take_nodes(plan, nodes, is_shared_out ? RanksOnHost() : ranks);
  }
  // If the user asked for more threads than there are processors, only the processors can be
  // divided.
  const int own = std::min(plan.compute, share);
  const int of_nodes = kUpdateThreadsPerNode * std::max<int>(1, static_cast<int>(nodes.size()));
  const int most = std::max(1, is_shared_out ? of_nodes : of_nodes / ranks.count);
  plan.update = std::clamp(own / 2, 1, most);
  return plan;
}

std::string to_text(const ThreadPlan& plan) {
  std::string nodes = "1 NUMA node";
  if (!plan.nodes.empty()) {
    nodes = fmt::format("NUMA node{} {}", plan.nodes.size() == 1 ? "" : "s",
                        fmt::join(plan.nodes, ", "));
  }
  return fmt::format("threads: {} for compute, {} for updates; {} processor{} may be used, on {}{}",
                     plan.compute, plan.update, plan.usable_cpus, plan.usable_cpus == 1 ? "" : "s",
                     nodes, plan.cpus.empty() ? "" : ", pinned to the processors of these nodes");
}

}  // namespace terrace
