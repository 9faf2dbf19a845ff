#include "memory/host/topology.h"

#include <gtest/gtest.h>

#include <set>

#include "memory/host/cpu_mask.h"
#include "tests/offload/denied_calls.h"

namespace terrace {
namespace {

TEST(TopologyTest, DescribesThisMachine) {
  const Topology topology = read_topology();
  EXPECT_FALSE(topology.cpu_model.empty());
  EXPECT_LE(1, topology.cores);
  EXPECT_LE(topology.cores, topology.hardware_threads);
  EXPECT_LE(static_cast<int>(cpus_of_thread().size()), topology.hardware_threads);
  ASSERT_FALSE(topology.numa_nodes.empty());
}

TEST(TopologyTest, EveryCpuIsInOneNode) {
  const Topology topology = read_topology();
  std::set<int> cpus;
  std::size_t listed = 0;
  std::size_t memory_bytes = 0;
  for (const NumaNode& node : topology.numa_nodes) {
    cpus.insert(node.cpus.begin(), node.cpus.end());
    listed += node.cpus.size();
    memory_bytes += node.memory_bytes;
  }
  EXPECT_LE(static_cast<std::size_t>(topology.hardware_threads), cpus.size());
  EXPECT_EQ(cpus.size(), listed);
  EXPECT_LT(0U, memory_bytes);
}

// If the system refuses the affinity mask, hwloc would ask for it again and again, so the topology
// is read without hwloc.
TEST(TopologyTest, IsToldWithoutTheAffinityMask) {
  const Topology told = read_topology();
  const ExitCode code = in_child([&] {
    if (!forbid(SYS_sched_getaffinity, SYS_sched_getaffinity, EPERM)) return kCannotTell;
    const Topology topology = read_topology();
    return expected_if(!affinity_of_thread() && !cpus_of_thread().empty() &&
                       topology.hardware_threads >= told.hardware_threads &&
                       topology.numa_nodes.size() == 1 && topology.cores >= 1);
  });
  if (code == kCannotTell) GTEST_SKIP() << "seccomp filters are not allowed here";
  EXPECT_EQ(code, kAsExpected);
}

}  // namespace
}  // namespace terrace
