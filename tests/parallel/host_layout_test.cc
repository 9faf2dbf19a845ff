#include "parallel/mpi/host_layout.h"

#include <gtest/gtest.h>

#include <vector>

namespace terrace {
namespace {

HostLayout layout_of(const std::vector<int>& keys, int rank) { return {keys, rank}; }

TEST(HostLayoutTest, NumbersHostsByTheirLowestRank) {
  const HostLayout layout = layout_of({7, 3, 7, 3, 3}, 2);
  EXPECT_EQ(layout.hosts(), 2);
  EXPECT_EQ(layout.own_host(), 0);
  EXPECT_EQ(layout.locals(), (std::vector<int>{0, 2}));
  EXPECT_EQ(layout.ranks_of(1), (std::vector<int>{1, 3, 4}));
  EXPECT_EQ(layout.place_of(4), 2);
  EXPECT_TRUE(layout.is_local(0));
  EXPECT_FALSE(layout.is_local(1));
}

TEST(HostLayoutTest, DividesWhatOtherHostsSendAmongItsRanks) {
  const std::vector<int> keys = {0, 0, 1, 1, 1};
  const HostLayout first = layout_of(keys, 0);
  EXPECT_EQ(first.carrier(2, 0), 0);
  EXPECT_EQ(first.carrier(3, 0), 1);
  EXPECT_EQ(first.carrier(4, 0), 0);  // the third rank of a host goes to the first of two again
  EXPECT_EQ(first.carried_before(2), 0);
  EXPECT_EQ(first.carried_before(3), 0);
  EXPECT_EQ(first.carried_before(4), 1);
  EXPECT_EQ(first.carried_most(), 2);
  EXPECT_EQ(layout_of(keys, 3).carrier(1, 1), 3);
}

TEST(HostLayoutTest, KnowsWhereSumsCanBeTakenHostByHost) {
  EXPECT_TRUE(layout_of({0, 0, 1, 1}, 0).is_in_rank_order());
  EXPECT_TRUE(layout_of({5, 5, 2, 2}, 0).is_in_rank_order());
  EXPECT_FALSE(layout_of({0, 1, 0, 1}, 0).is_in_rank_order());
  EXPECT_FALSE(layout_of({0, 0, 1}, 0).is_in_rank_order());
  EXPECT_TRUE(layout_of({0, 0, 1}, 0).has_shared_host());
  EXPECT_FALSE(layout_of({0, 1, 2}, 0).has_shared_host());
  EXPECT_FALSE(layout_of({0, 0, 0}, 0).has_shared_host());
}

}  // namespace
}  // namespace terrace
