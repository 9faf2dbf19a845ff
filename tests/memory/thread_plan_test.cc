#include "memory/host/thread_plan.h"

#include <gtest/gtest.h>

#include <cstdlib>

namespace terrace {
namespace {

HostLimits limits_of(int affinity_cpus, std::optional<double> quota = std::nullopt) {
  HostLimits limits;
  limits.affinity_cpus = affinity_cpus;
  limits.cgroup_cpus = quota;
  return limits;
}

// Returns a machine that hwloc makes up, described in hwloc's syntax.
Topology made_up(const char* synthetic) {
  setenv("HWLOC_SYNTHETIC", synthetic, 1);
  const Topology topology = read_topology();
  unsetenv("HWLOC_SYNTHETIC");
  return topology;
}

TEST(ThreadPlanTest, TakesWhatMaskAndQuotaAllow) {
  const Topology topology = made_up("numa:1 core:16 pu:1");
  EXPECT_EQ(plan_threads(std::nullopt, limits_of(16), topology),
            (ThreadPlan{.compute = 16, .update = 8, .usable_cpus = 16, .nodes = {}, .cpus = {}}));
  EXPECT_EQ(plan_threads(std::nullopt, limits_of(6), topology).compute, 6);
  EXPECT_EQ(plan_threads(std::nullopt, limits_of(16, 4.5), topology).compute, 4);
  EXPECT_EQ(plan_threads(std::nullopt, limits_of(16, 4.5), topology).update, 2);
}

TEST(ThreadPlanTest, WhatTheUserNamesIsTaken) {
  const Topology topology = made_up("numa:1 core:4 pu:1");
  EXPECT_EQ(plan_threads(3, limits_of(4), topology).compute, 3);
  EXPECT_EQ(plan_threads(3, limits_of(4), topology).update, 1);
  EXPECT_EQ(plan_threads(1, limits_of(4), topology).update, 1);
  // The number that the user names is also taken if compute threads then have to share processors.
  // The updates ask for no more processors because of that.
  EXPECT_EQ(plan_threads(16, limits_of(4), topology).compute, 16);
  EXPECT_EQ(plan_threads(16, limits_of(4), topology).update, 2);
}

TEST(ThreadPlanTest, UpdatesGetNoMoreThanFillTheMemory) {
  const Topology one = made_up("numa:1 core:128 pu:1");
  const Topology four = made_up("package:2 numa:2 core:32 pu:1");
  ASSERT_EQ(one.numa_nodes.size(), 1U);
  ASSERT_EQ(four.numa_nodes.size(), 4U);
  const ThreadPlan small = plan_threads(std::nullopt, limits_of(128), one);
  const ThreadPlan large = plan_threads(std::nullopt, limits_of(128), four);
  EXPECT_EQ(large.nodes, (std::vector<int>{0, 1, 2, 3}));
  EXPECT_TRUE(large.cpus.empty());
  EXPECT_EQ(large.update, 4 * small.update);
  EXPECT_LT(small.update, 32);
  EXPECT_EQ(small.compute, large.compute);
}

TEST(ThreadPlanTest, RanksShareTheHost) {
  const Topology topology = made_up("numa:1 core:16 pu:1");
  EXPECT_EQ(plan_threads(std::nullopt, limits_of(16), topology, {4, 0}).compute, 4);
  EXPECT_EQ(plan_threads(std::nullopt, limits_of(16), topology, {4, 0}).update, 2);
  EXPECT_EQ(plan_threads(std::nullopt, limits_of(16), topology, {32, 0}).compute, 1);
  EXPECT_EQ(plan_threads(std::nullopt, limits_of(16), topology, {32, 0}).update, 1);
  EXPECT_EQ(plan_threads(3, limits_of(16), topology, {4, 0}).compute, 3);
}

TEST(ThreadPlanTest, WhatALauncherHasSharedOutIsNotSharedAgain) {
  const Topology topology = made_up("numa:1 core:16 pu:1");
  EXPECT_EQ(plan_threads(std::nullopt, limits_of(4), topology, {4, 1}).compute, 4);
  // A quota is for all ranks together.
  EXPECT_EQ(plan_threads(std::nullopt, limits_of(4, 8.0), topology, {4, 1}).compute, 1);
  EXPECT_EQ(plan_threads(std::nullopt, limits_of(16, 8.0), topology, {4, 1}).compute, 2);
}

TEST(ThreadPlanTest, RanksGetNodesOfTheirOwn) {
  const Topology topology = made_up("package:2 numa:2 core:2 pu:1");
  const auto plan = [&](int count, int index) {
    return plan_threads(std::nullopt, limits_of(8), topology, {count, index});
  };
  EXPECT_EQ(plan(2, 0).nodes, (std::vector<int>{0, 1}));
  EXPECT_EQ(plan(2, 1).nodes, (std::vector<int>{2, 3}));
  EXPECT_EQ(plan(2, 1).cpus, (std::vector<int>{4, 5, 6, 7}));
  EXPECT_EQ(plan(4, 2).nodes, (std::vector<int>{2}));
  EXPECT_EQ(plan(4, 2).cpus, (std::vector<int>{4, 5}));
  EXPECT_EQ(plan(8, 7).nodes, (std::vector<int>{3}));
  EXPECT_EQ(plan(8, 7).compute, 1);
}

TEST(ThreadPlanTest, OnlyNodesThatTheMaskReaches) {
  const Topology topology = made_up("numa:2 core:4 pu:1");
  HostLimits limits = limits_of(4);
  limits.cpus = {4, 5, 6, 7};
  const ThreadPlan plan = plan_threads(std::nullopt, limits, topology, {2, 1});
  EXPECT_EQ(plan.nodes, (std::vector<int>{1}));
  EXPECT_TRUE(plan.cpus.empty());  // the mask already says it
  EXPECT_EQ(plan.compute, 4);
}

TEST(ThreadPlanTest, ATextForTheConsole) {
  EXPECT_EQ(
      to_text(ThreadPlan{.compute = 2, .update = 1, .usable_cpus = 2, .nodes = {}, .cpus = {}}),
      "threads: 2 for compute, 1 for updates; 2 processors may be used, on 1 NUMA node");
  EXPECT_EQ(
      to_text(ThreadPlan{.compute = 8, .update = 4, .usable_cpus = 16, .nodes = {1}, .cpus = {9}}),
      "threads: 8 for compute, 4 for updates; 16 processors may be used, on NUMA node 1, pinned "
      "to the processors of these nodes");
}

}  // namespace
}  // namespace terrace
