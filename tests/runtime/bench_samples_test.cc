#include <gtest/gtest.h>

#include "runtime/bench/bench.h"

namespace terrace {
namespace {

Samples samples_of(std::initializer_list<double> values) {
  Samples samples;
  for (const double value : values) samples.add(value);
  return samples;
}

TEST(BenchSamples, MedianAndRange) {
  EXPECT_EQ(samples_of({5, 1, 3}).median(), 3);
  EXPECT_EQ(samples_of({4, 1, 2, 9}).median(), 3);
  EXPECT_EQ(samples_of({5, 1, 3}).low(), 1);
  EXPECT_EQ(samples_of({5, 1, 3}).high(), 5);
}

TEST(BenchSamples, InterleavedRoundsTakeTurnsInBeginning) {
  std::vector<int> order;
  std::vector<Measurement> measurements;
  for (int i = 0; i < 3; ++i) {
    measurements.emplace_back([i, &order] {
      order.push_back(i);
      return 10.0 * i + static_cast<double>(order.size());
    });
  }
  const std::vector<Samples> samples = interleave(measurements, 3);
  EXPECT_EQ(order, (std::vector<int>{0, 1, 2, 1, 2, 0, 2, 0, 1}));
  EXPECT_EQ(samples[0].count(), 3);
  EXPECT_EQ(samples[1].low(), 12);
  EXPECT_EQ(samples[2].high(), 27);
}

TEST(BenchSamples, RatiosAreOfTheSameRound) {
  const Samples ratios = ratios_of_rounds(samples_of({2, 9, 8}), samples_of({1, 3, 2}));
  EXPECT_EQ(ratios.values(), (std::vector<double>{2, 3, 4}));
}

TEST(BenchResult, RatioIsOneWhereTheLimitIsReached) {
  BenchResult rate;
  rate.unit = BenchUnit::kGigabytesPerSecond;
  rate.value = samples_of({2});
  rate.limit = samples_of({4});
  EXPECT_EQ(rate.ratio(), 0.5);
  BenchResult time = rate;
  time.unit = BenchUnit::kMillisecondsPerGigabyte;
  EXPECT_EQ(time.ratio(), 2);
}

TEST(BenchUnits, EveryUnitHasAName) {
  for (int i = 0; i <= static_cast<int>(BenchUnit::kBytesPerElement); ++i) {
    EXPECT_FALSE(name_of(static_cast<BenchUnit>(i)).empty()) << i;
  }
  EXPECT_EQ(name_of(BenchUnit::kBytesPerElement), "bytes/element");
  EXPECT_FALSE(is_rate(BenchUnit::kSeconds));
  EXPECT_TRUE(is_rate(BenchUnit::kTokensPerSecond));
}

}  // namespace
}  // namespace terrace
