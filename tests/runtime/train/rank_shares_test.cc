#include "runtime/train/rank_shares.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "base/error.h"

namespace terrace {
namespace {

using testing::ElementsAre;

TEST(RankShares, AreProportions) {
  EXPECT_THAT(divide_by_shares(8, {3, 1}), ElementsAre(6, 2));
  EXPECT_THAT(divide_by_shares(8, {30, 10}), ElementsAre(6, 2));
  EXPECT_THAT(divide_by_shares(12, {1, 2, 3}), ElementsAre(2, 4, 6));
  EXPECT_THROW(divide_by_shares(8, {2, 1}), ConfigError);
}

// The error names the least number of micro-batches for each rank that can be divided.
TEST(RankShares, TheErrorNamesNumbersThatWork) {
  try {
    divide_by_shares(8, {3, 2});
    FAIL() << "no error";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("multiple of 5"));
  }
  EXPECT_THAT(divide_by_shares(2 * 5, {3, 2}), ElementsAre(6, 4));
}

TEST(RankShares, ByTimeLetTheLastRankEndEarliest) {
  const std::vector<double> twice = {1, 2};
  EXPECT_THAT(divide_by_time(6, twice, 6), ElementsAre(4, 2));
  EXPECT_THAT(divide_by_time(7, twice, 7), ElementsAre(5, 2));
  const std::vector<double> alike = {0.5, 0.5, 0.5};
  EXPECT_THAT(divide_by_time(6, alike, 4), ElementsAre(2, 2, 2));
  const std::vector<double> slow = {1, 100};
  EXPECT_THAT(divide_by_time(4, slow, 3), ElementsAre(3, 1));
  EXPECT_THAT(divide_by_time(4, slow, 2), ElementsAre(2, 2));
}

// No other division of three ranks ends earlier.
TEST(RankShares, ByTimeAreTheBestOfAll) {
  const std::vector<double> seconds = {0.7, 1.1, 2.3};
  const auto end_of = [&](const std::vector<std::int64_t>& parts) {
    double end = 0;
    for (std::size_t rank = 0; rank < parts.size(); ++rank) {
      end = std::max(end, static_cast<double>(parts[rank]) * seconds[rank]);
    }
    return end;
  };
  for (std::int64_t all = 3; all < 30; ++all) {
    const double found = end_of(divide_by_time(all, seconds, all));
    for (std::int64_t first = 1; first < all - 1; ++first) {
      for (std::int64_t second = 1; first + second < all; ++second) {
        EXPECT_LE(found, end_of({first, second, all - first - second}));
      }
    }
  }
}

TEST(DividedStep, TakesOnlyNumbersThatDivideIt) {
  DividedStep step = {.all = 8, .most = 6, .by_rank = {}};
  for (const std::vector<std::int64_t>& other :
       {std::vector<std::int64_t>{}, {8}, {7, 1}, {5, 2}, {4, 2, 2}, {8, 0}}) {
    step.take(other, 2);
    EXPECT_TRUE(step.by_rank.empty());
  }
  step.take({5, 3}, 2);
  EXPECT_THAT(step.by_rank, ElementsAre(5, 3));
}

}  // namespace
}  // namespace terrace
