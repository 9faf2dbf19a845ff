#include "runtime/train/rank_group.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <thread>
#include <vector>

#include "parallel/thread_communicator.h"

namespace terrace {
namespace {

void meet(Communicator& group) {
  std::int32_t nothing = 0;
  group.all_reduce(view(std::span(&nothing, 1)), ReduceOp::kMax, {});
}

// Four ranks, two by two. Rank 3 begins the collectives of its data-parallel group late, so rank 1
// waits for it, and no other rank does.
TEST(RankGroup, CountsTheWaitsOfAStepByTheRankThatCausedThem) {
  const MeshShape shape = {.data = 2, .tensor = 2};
  auto worlds = make_thread_communicators(shape.ranks(), "world", {});
  std::vector<std::jthread> threads;
  for (const std::unique_ptr<Communicator>& world : worlds) {
    threads.emplace_back([&world, &shape] {
      RankGroup ranks(world.get(), shape);
      ranks.take_waits();
      constexpr double kLateness = 0.005;
      for (int call = 0; call < 20; ++call) {
        if (ranks.rank() == 3)
          std::this_thread::sleep_for(std::chrono::duration<double>(kLateness));
        meet(*ranks.steps().data.host);
      }
      const RankWaits waits = ranks.take_waits();
      ASSERT_EQ(waits.waited_s.size(), 4U);
      ASSERT_EQ(waits.waited_for_s.size(), 4U);
      EXPECT_GT(waits.waited_s[1], kLateness);
      EXPECT_GT(waits.waited_for_s[3], kLateness);
      double waited = 0;
      double caused = 0;
      for (int rank = 0; rank < 4; ++rank) {
        waited += waits.waited_s[static_cast<std::size_t>(rank)];
        caused += waits.waited_for_s[static_cast<std::size_t>(rank)];
      }
      EXPECT_NEAR(waited, caused, 1e-9);
      EXPECT_TRUE(ranks.take_waits().waited_for_s.empty());  // there were no more
    });
  }
}

// All threads are on one host. If the launcher says that there are fewer ranks on it, the mean of
// all ranks stands for each of them.
TEST(RankGroup, AddsUpTheValuesOfAHost) {
  auto worlds = make_thread_communicators(3, "world", {});
  std::vector<std::jthread> threads;
  for (const std::unique_ptr<Communicator>& world : worlds) {
    threads.emplace_back([&world] {
      const RankGroup ranks(world.get(), {.data = 3});
      EXPECT_EQ(ranks.sum_on_host(1.0 + ranks.rank(), 3), 6);
      EXPECT_EQ(ranks.sum_on_host(1.0 + ranks.rank(), 1), 2);
      EXPECT_EQ(ranks.smallest_on_host(7 - ranks.rank()), 5);
    });
  }
  threads.clear();
  const RankGroup alone(nullptr, {});
  EXPECT_EQ(alone.sum_on_host(4, 1), 4);
  EXPECT_EQ(alone.smallest_on_host(4), 4);
}

TEST(RankGroup, ASingleRankWaitsForNobody) {
  RankGroup alone(nullptr, {});
  EXPECT_TRUE(alone.take_waits().waited_s.empty());
}

}  // namespace
}  // namespace terrace
