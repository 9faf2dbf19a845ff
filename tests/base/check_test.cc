#include "base/check.h"

#include <gtest/gtest.h>

namespace terrace {
namespace {

TEST(CheckTest, PassesAndEvaluatesOnce) {
  int evaluations = 0;
  TERRACE_CHECK(++evaluations == 1);
  TERRACE_CHECK_EQ(++evaluations, 2);
  TERRACE_CHECK_NE(++evaluations, 2);
  TERRACE_CHECK_LT(3, ++evaluations);
  TERRACE_CHECK_LE(5, ++evaluations);
  EXPECT_EQ(evaluations, 5);
}

TEST(CheckTest, IsOneStatement) {
  if (false)
    TERRACE_CHECK(false);
  else
    SUCCEED();
}

TEST(CheckDeathTest, PrintsThePlaceAndBothOperands) {
  const int three = 3;
  EXPECT_DEATH(TERRACE_CHECK(three == 4), "check_test.cc:[0-9]+: broken invariant: three == 4");
  EXPECT_DEATH(TERRACE_CHECK_EQ(three, 4), "three == 4 \\(3 and 4\\)");
  EXPECT_DEATH(TERRACE_CHECK_NE(three, 3), "three != 3 \\(3 and 3\\)");
  EXPECT_DEATH(TERRACE_CHECK_LT(three, 3), "three < 3 \\(3 and 3\\)");
  EXPECT_DEATH(TERRACE_CHECK_LE(three, 2), "three <= 2 \\(3 and 2\\)");
}

}  // namespace
}  // namespace terrace
