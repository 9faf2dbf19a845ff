#include "runtime/report/series.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>

#include "runtime/report/chart_axis.h"

namespace terrace::report {
namespace {

TEST(Series, LeavesOutWhatIsNoNumber) {
  const std::vector<double> x = {1, 2, 3, 4};
  const std::vector<double> y = {5, std::nan(""), std::numeric_limits<double>::infinity(), 8};
  const Series series = finite_series(x, y);
  EXPECT_EQ(series.x, (std::vector<double>{1, 4}));
  EXPECT_EQ(series.y, (std::vector<double>{5, 8}));
}

TEST(Series, FewValuesStayAsTheyAre) {
  const GroupedSeries few = grouped({{1, 2, 3}, {4, 6, 5}}, 3);
  ASSERT_EQ(few.groups.size(), 3U);
  EXPECT_EQ(few.values_of_each, 1U);
  EXPECT_EQ(few.groups[1].mean, 6);
  EXPECT_EQ(few.x_high, 2);
  EXPECT_EQ(few.last, 5);
}

// A spike of one step in 100,000 is still in the picture, and no mean is invented.
TEST(Series, GroupsKeepTheExtremes) {
  Series series;
  for (int i = 0; i < 100000; ++i) {
    series.x.push_back(i + 1);
    series.y.push_back(i == 70000 ? 50.0 : 1.0);
  }
  const GroupedSeries groups = grouped(series, 360);
  EXPECT_LE(groups.groups.size(), 360U);
  EXPECT_EQ(groups.values, 100000U);
  EXPECT_EQ(groups.values_of_each, 278U);
  EXPECT_EQ(groups.high, 50);
  EXPECT_EQ(groups.x_high, 70001);
  double highest = 0;
  for (const ValueGroup& group : groups.groups) {
    highest = std::max(highest, group.high);
    EXPECT_LE(group.low, group.mean + 1e-12);
    EXPECT_GE(group.high, group.mean - 1e-12);
  }
  EXPECT_EQ(highest, 50);
}

TEST(Series, Quantiles) {
  EXPECT_EQ(quantile({}, 0.5), 0);
  EXPECT_EQ(quantile({3, 1, 2}, 0.5), 2);
  EXPECT_EQ(quantile({3, 1, 2}, 1), 3);
  const std::vector<double> values = {1, std::nan(""), 2};
  EXPECT_EQ(finite_sum(values), 3);
}

TEST(ChartAxis, TicksAreRoundAndInside) {
  const std::vector<double> ticks = axis_ticks({0.13, 4.9}, 5);
  EXPECT_EQ(ticks, (std::vector<double>{1, 2, 3, 4}));
  EXPECT_TRUE(axis_ticks({1, 1}, 5).empty());
  EXPECT_EQ(axis_ticks({-1, 1}, 4), (std::vector<double>{-1, -0.5, 0, 0.5, 1}));
  EXPECT_TRUE(axis_ticks({0, std::numeric_limits<double>::infinity()}, 4).empty());
}

TEST(ChartAxis, APointHasARangeToo) {
  const AxisRange range = padded({3, 3});
  EXPECT_LT(range.low, 3);
  EXPECT_GT(range.high, 3);
  EXPECT_LT(padded({0, 0}).low, padded({0, 0}).high);
  EXPECT_EQ(AxisScale({0, 10}, 100, 200).place(5), 150);
}

}  // namespace
}  // namespace terrace::report
