#include "bench/rounds.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <limits>

#include "bench/bench_record.h"
#include "bench/call_count.h"

// Tests of how the time of a benchmark is dealt out.
namespace terrace {
namespace {

using Order = std::vector<std::string>;

TEST(InterleavedRounds, GoOnWhereTheyWereLeft) {
  Order order;
  std::vector<Measurement> measurements;
  for (const char* const name : {"a", "b"}) {
    measurements.emplace_back([&order, name] {
      order.emplace_back(name);
      return static_cast<double>(order.size());
    });
  }
  InterleavedRounds rounds(std::move(measurements));
  std::vector<Samples> samples;
  const auto keep = [&](const std::vector<Samples>& taken) { samples = taken; };
  rounds.take({.most = 1}, keep);
  EXPECT_EQ(rounds.count(), 1);
  EXPECT_EQ(order, (Order{"a", "b"}));
  rounds.take({.most = 1}, keep);
  EXPECT_EQ(order.size(), 2U);
  rounds.take({.most = 3}, keep);
  EXPECT_EQ(order, (Order{"a", "b", "b", "a", "a", "b"}));
  EXPECT_EQ(samples[0].values(), (std::vector<double>{1, 4, 5}));
  EXPECT_EQ(samples[1].values(), (std::vector<double>{2, 3, 6}));
}

TEST(DealRounds, EveryPartHasARoundBeforeAnyHasASecond) {
  BenchRecord record;
  Order order;
  deal_rounds(3, 2, record, [&](std::size_t part, const Rounds& rounds) {
    order.push_back(fmt::format("{} up to {}", part, rounds.most));
  });
  EXPECT_EQ(order,
            (Order{"0 up to 1", "1 up to 1", "2 up to 1", "0 up to 2", "1 up to 2", "2 up to 2"}));
}

// A part whose round is longer than the time that is left is passed over, and a short one goes on.
TEST(DealRounds, WhatIsLeftGoesToThePartsThatStillFit) {
  constexpr double kLimitSeconds = 1e4;  // far longer than the test
  BenchRecord record(Deadline::after(kLimitSeconds));
  std::vector<int> rounds_of(2);
  deal_rounds(2, 5, record, [&](std::size_t part, const Rounds& rounds) {
    if (part == 0 && rounds.most > 1) return;
    rounds_of[part] = rounds.most;
  });
  EXPECT_EQ(rounds_of, (std::vector<int>{1, 5}));
}

TEST(CallCount, FitsTheTimeOfAMeasurement) {
  const double never = std::numeric_limits<double>::infinity();
  int measured = 0;
  const auto call = [&measured](double seconds) {
    return [&measured, seconds] {
      ++measured;
      return seconds;
    };
  };
  EXPECT_EQ(CallCount(300, never).of(call(1)), 300);
  EXPECT_EQ(measured, 0);
  CallCount calls(300, 0.5);
  EXPECT_EQ(calls.of(call(0.01)), 50);
  EXPECT_EQ(calls.of(call(9)), 50);
  EXPECT_EQ(measured, 1);
  EXPECT_EQ(CallCount(300, 0.5).of(call(1e-6)), 300);
  EXPECT_EQ(CallCount(300, 0.5).of(call(100)), 1);
}

TEST(Percentile, IsTheLeastThatSoManyDoNotExceed) {
  const std::vector<double> values = {4, 1, 3, 2};
  EXPECT_EQ(percentile_of(values, 50), 2);
  EXPECT_EQ(percentile_of(values, 99), 4);
  EXPECT_EQ(percentile_of(values, 0), 1);
  EXPECT_EQ(percentile_of(std::vector<double>{7}, 50), 7);
}

}  // namespace
}  // namespace terrace
