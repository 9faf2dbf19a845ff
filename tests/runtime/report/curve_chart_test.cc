#include "runtime/report/curve_chart.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/runtime/report/well_formed.h"

namespace terrace::report {
namespace {

using testing::HasSubstr;
using testing::Not;

Series line(int values, double at, double value) {
  Series series;
  for (int i = 1; i <= values; ++i) {
    series.x.push_back(i);
    series.y.push_back(i == at ? value : 1 + 0.01 * (i % 7));
  }
  return series;
}

CurveChart chart_of(const Series& series) {
  CurveChart chart = {.id = "x", .title = "Step <time>", .unit = "seconds"};
  chart.curves.push_back({.name = "a \"b\"", .values = grouped(series, kCurvePoints)});
  return chart;
}

TEST(CurveChart, IsWellFormedAndDescribed) {
  const std::string html = curve_figure(chart_of(line(10, 4, 9)));
  EXPECT_EQ(problem_of_xml(html), "");
  EXPECT_THAT(html, HasSubstr("role=\"img\" aria-labelledby=\"x-t x-d\""));
  EXPECT_THAT(html, HasSubstr("<title id=\"x-t\">Step &lt;time&gt;, by step</title>"));
  EXPECT_THAT(html, HasSubstr("a &quot;b&quot;: 1.01 at step 1, 1.03 at step 10; lowest 1 at "
                              "step 7, highest 9 at step 4."));
  EXPECT_THAT(html, Not(HasSubstr("class=\"band")));
  EXPECT_THAT(html, Not(HasSubstr("mean of")));
}

TEST(CurveChart, SaysWhatOnePointStandsFor) {
  const std::string html = curve_figure(chart_of(line(3600, 1, 1)));
  EXPECT_THAT(html, HasSubstr("class=\"band"));
  EXPECT_THAT(html, HasSubstr("Each point is the mean of up to 10 values"));
}

TEST(CurveChart, SaysWhatItsAxisCutsOff) {
  CurveChart chart = chart_of(line(300, 1, 700));
  EXPECT_THAT(curve_figure(chart), Not(HasSubstr("end of the axis")));
  chart.cuts_outliers = true;
  EXPECT_THAT(curve_figure(chart),
              HasSubstr("1 point lies above the end of the axis; the highest value is 700."));
}

TEST(CurveChart, DrawsOneValueAndNone) {
  EXPECT_EQ(problem_of_xml(curve_figure(chart_of(line(1, 1, 0)))), "");
  EXPECT_NE(curve_figure(chart_of(line(1, 1, 0))), "");
  EXPECT_EQ(curve_figure(chart_of({})), "");
}

TEST(CurveChart, ShowsTheReference) {
  CurveChart chart = chart_of(line(10, 4, 9));
  chart.reference = 20;
  chart.reference_name = "predicted";
  const std::string html = curve_figure(chart);
  EXPECT_THAT(html, HasSubstr("class=\"reference\""));
  EXPECT_THAT(html, HasSubstr("predicted: 20."));
}

}  // namespace
}  // namespace terrace::report
