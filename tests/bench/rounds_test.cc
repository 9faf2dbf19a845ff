#include "bench/rounds.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <limits>
#include <numeric>

#include "bench/bench_record.h"
#include "bench/timed_calls.h"

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

TEST(TimedCalls, FitTheTimeOfAMeasurement) {
  const double never = std::numeric_limits<double>::infinity();
  std::vector<int> counts;
  const auto calls_of = [&counts](double seconds) {
    return [&counts, seconds](int count) {
      counts.push_back(count);
      return seconds;
    };
  };
  EXPECT_EQ(TimedCalls(300, never).seconds_of_call(calls_of(1)), 1);
  EXPECT_EQ(counts, (std::vector<int>{300})) << "as planned, in one go";
  counts.clear();
  EXPECT_NEAR(TimedCalls(300, 0.5).seconds_of_call(calls_of(0.01)), 0.01, 1e-12);
  EXPECT_EQ(std::accumulate(counts.begin(), counts.end(), 0), 50);
  counts.clear();
  TimedCalls(300, 0.5).seconds_of_call(calls_of(1e-6));
  EXPECT_EQ(std::accumulate(counts.begin(), counts.end(), 0), 300);
  counts.clear();
  TimedCalls(300, 0.5).seconds_of_call(calls_of(100));
  EXPECT_EQ(counts, (std::vector<int>{1}));
}

// On a busy machine a call takes a microsecond if both ranks happen to run, and else the time until
// the other one runs again.
TEST(TimedCalls, DoNotBelieveAFirstCallThatWasQuickByChance) {
  double spent = 0;
  bool is_first = true;
  TimedCalls(1000, 0.1).seconds_of_call([&](int count) {
    const double seconds = is_first ? 1e-6 : 0.01;
    is_first = false;
    spent += count * seconds;
    return seconds;
  });
  EXPECT_LT(spent, 0.2);
}

TEST(InterleavedRounds, BeginNoMeasurementThatWouldEndTooLate) {
  constexpr double kLeftSeconds = 1e4;  // far longer than the test
  int taken = 0;
  InterleavedRounds rounds({[&taken] { return static_cast<double>(++taken); }});
  const auto ignore = [](const std::vector<Samples>&) {};
  Rounds with_time = {.most = 1, .end = Deadline::after(kLeftSeconds)};
  with_time.measurement_s = 2 * kLeftSeconds;
  EXPECT_THROW(rounds.take(with_time, ignore), TimeIsUp);
  EXPECT_EQ(taken, 0);
  with_time.measurement_s = kLeftSeconds / 2;
  rounds.take(with_time, ignore);
  EXPECT_EQ(taken, 1);
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
