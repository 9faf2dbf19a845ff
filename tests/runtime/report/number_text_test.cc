#include "runtime/report/number_text.h"

#include <gtest/gtest.h>

#include <cmath>

namespace terrace::report {
namespace {

TEST(NumberText, Numbers) {
  EXPECT_EQ(number_text(2.4231), "2.42");
  EXPECT_EQ(number_text(3e-5), "3e-5");
  EXPECT_EQ(number_text(25300.4), "25,300");
  EXPECT_EQ(number_text(-1234567), "-1,234,567");
  EXPECT_EQ(number_text(1e20), "1e20");
  EXPECT_EQ(number_text(std::nan("")), "not a number");
  EXPECT_EQ(count_text(999), "999");
  EXPECT_EQ(count_text(100000), "100,000");
  EXPECT_EQ(counted(1, "step"), "1 step");
  EXPECT_EQ(counted(2000, "step"), "2,000 steps");
}

TEST(NumberText, Ticks) {
  EXPECT_EQ(tick_text(0), "0");
  EXPECT_EQ(tick_text(0.00003), "3e-5");
  EXPECT_EQ(tick_text(1500), "1.5k");
  EXPECT_EQ(tick_text(2e6), "2M");
  EXPECT_EQ(tick_text(0.15), "0.15");
}

TEST(NumberText, TimesAndSizes) {
  EXPECT_EQ(time_text(0.00194), "1.94 ms");
  EXPECT_EQ(time_text(12.34), "12.3 s");
  EXPECT_EQ(time_text(600), "10 min");
  EXPECT_EQ(time_text(7500), "2 h 5 min");
  EXPECT_EQ(percent_text(0.413), "41.3 %");
  EXPECT_EQ(bytes_text(12 * 1024 * 1024), "12.0 MiB");
  EXPECT_EQ(bytes_text(std::nan("")), "unknown");
  EXPECT_EQ(bytes_text(-1), "unknown");
  EXPECT_EQ(rate_text(2.41e9), "2.41 GB/s");
  EXPECT_EQ(rate_text(2048000), "2.05 MB/s");
  EXPECT_EQ(date_text(1795947970), "2026-11-29 10:26 UTC");
  EXPECT_EQ(date_text(1e300), "unknown");
}

}  // namespace
}  // namespace terrace::report
