#include "memory/host/thread_plan.h"

#include <fmt/format.h>

#include <algorithm>

namespace terrace {
namespace {

// One thread streams 15 to 30 GB/s through an update where that was measured; the memory of a node
// gives no more than some 250.
constexpr int kUpdateThreadsPerNode = 12;

}  // namespace

ThreadPlan plan_threads(std::optional<int> asked, const HostLimits& limits,
                        const Topology& topology, int ranks) {
  ThreadPlan plan;
  plan.usable_cpus = limits.usable_cpus();
  plan.compute = std::max(1, asked.value_or(plan.usable_cpus / ranks));
  const auto nodes = std::ranges::count_if(topology.numa_nodes,
                                           [](const NumaNode& node) { return !node.cpus.empty(); });
  plan.numa_nodes = std::max(1, static_cast<int>(nodes));
  // More threads than processors: the processors are what there is to share.
  const int own = std::min(plan.compute, plan.usable_cpus / ranks);
  const int most = std::max(1, kUpdateThreadsPerNode * plan.numa_nodes / ranks);
  plan.update = std::clamp(own / 2, 1, most);
  return plan;
}

std::string to_text(const ThreadPlan& plan) {
  return fmt::format(
      "threads: {} for compute, {} for updates; {} processor{} may be used, on {} NUMA node{}",
      plan.compute, plan.update, plan.usable_cpus, plan.usable_cpus == 1 ? "" : "s",
      plan.numa_nodes, plan.numa_nodes == 1 ? "" : "s");
}

}  // namespace terrace
