#include "runtime/plan/least_budget.h"

#include <gtest/gtest.h>

#include <random>

#include "base/bytes.h"

namespace terrace {
namespace {

TEST(LeastBudget, IsAcceptedAndClearlyLessIsNot) {
  std::mt19937_64 random(11);
  for (int i = 0; i < 200; ++i) {
    const std::size_t limit = random() % (std::size_t{1} << (14 + i % 30));
    const auto accepts = [limit](std::size_t bytes) { return bytes >= limit; };
    const std::size_t enough = round_up_budget(limit + random() % (limit + 1));
    const std::size_t least = least_budget(enough, accepts);
    EXPECT_TRUE(accepts(least)) << limit;
    EXPECT_LE(least, round_up_budget(limit + limit / 128 + 4 * kKiB)) << limit;
    const std::size_t less = clearly_less(least);
    EXPECT_TRUE(less == 0 || !accepts(less)) << limit;
  }
}

TEST(LeastBudget, IsNothingWhereNothingIsNeeded) {
  EXPECT_EQ(least_budget(round_up_budget(kMiB), [](std::size_t) { return true; }), 0U);
  EXPECT_EQ(least_budget(0, [](std::size_t) { return true; }), 0U);
}

// A planner may refuse one budget and accept a smaller one.
TEST(LeastBudget, IsFoundBelowBudgetsThatAreRefused) {
  const auto accepts = [](std::size_t bytes) {
    return bytes >= 100 * kMiB || (bytes >= 80 * kMiB && bytes < 96 * kMiB);
  };
  const std::size_t least = least_budget(128 * kMiB, accepts);
  EXPECT_TRUE(accepts(least));
  EXPECT_LT(least, 81 * kMiB);
}

TEST(LeastBudget, TakesFewTries) {
  int tries = 0;
  const auto accepts = [&tries](std::size_t bytes) {
    ++tries;
    return bytes >= 3 * kGiB;
  };
  least_budget(200 * kGiB, accepts);
  EXPECT_LE(tries, 40);
  tries = 0;
  least_budget(3 * kGiB, accepts);
  EXPECT_LE(tries, 8);
}

TEST(LeastBudget, ClearlyLessIs3PercentOr64KiB) {
  EXPECT_EQ(clearly_less(100 * kMiB), 97 * kMiB);
  EXPECT_EQ(clearly_less(kMiB), kMiB - 64 * kKiB);
  EXPECT_EQ(clearly_less(60 * kKiB), 0U);
}

}  // namespace
}  // namespace terrace
