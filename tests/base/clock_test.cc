#include "base/clock.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

namespace terrace {
namespace {

TEST(SystemClockTest, NeverGoesBack) {
  const SystemClock clock;
  std::int64_t last = clock.now_ns();
  for (int i = 0; i < 1000; ++i) {
    const std::int64_t now = clock.now_ns();
    EXPECT_LE(last, now);
    last = now;
  }
}

TEST(SystemClockTest, CountsNanoseconds) {
  const SystemClock clock;
  const std::int64_t begin = clock.now_ns();
  std::this_thread::sleep_for(std::chrono::milliseconds(2));
  EXPECT_LE(2'000'000, clock.now_ns() - begin);
}

TEST(SystemClockTest, AllClocksAgree) {
  const std::int64_t before = SystemClock().now_ns();
  const std::int64_t between = SystemClock().now_ns();
  const std::int64_t after = SystemClock().now_ns();
  EXPECT_LE(before, between);
  EXPECT_LE(between, after);
}

}  // namespace
}  // namespace terrace
