#include <gtest/gtest.h>

#include <atomic>

#include "bench/bench.h"
#include "bench/bench_record.h"
#include "bench/rounds.h"

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
  std::vector<Samples> samples;
  std::vector<int> rounds;
  interleave(measurements, {.most = 3}, [&](const std::vector<Samples>& taken) {
    samples = taken;
    rounds.push_back(taken[0].count());
  });
  EXPECT_EQ(rounds, (std::vector<int>{1, 2, 3}));
  EXPECT_EQ(order, (std::vector<int>{0, 1, 2, 1, 2, 0, 2, 0, 1}));
  EXPECT_EQ(samples[0].count(), 3);
  EXPECT_EQ(samples[1].low(), 12);
  EXPECT_EQ(samples[2].high(), 27);
}

// Only complete rounds are published, and a measurement does not begin when the time is over.
TEST(BenchSamples, ARoundThatIsNotCompleteIsDropped) {
  std::atomic<bool> cut_short = false;
  int calls = 0;
  Rounds rounds = {.most = 9, .cut_short = &cut_short};
  rounds.agreed = [&](bool /*wants_end*/) { return calls == 7; };
  const std::vector<Measurement> three(3, [&calls] { return 1.0 * ++calls; });
  std::vector<Samples> samples;
  interleave(three, rounds, [&](const std::vector<Samples>& taken) { samples = taken; });
  EXPECT_EQ(calls, 7);
  for (const Samples& one : samples) EXPECT_EQ(one.count(), 2);
  EXPECT_TRUE(cut_short);
}

TEST(BenchSamples, WithoutACompleteRoundTheTimeIsUp) {
  const std::vector<Measurement> one = {[] { return 1.0; }};
  const auto never = [](const std::vector<Samples>&) { FAIL(); };
  EXPECT_THROW(interleave(one, {.most = 2, .end = Deadline::after(-1)}, never), TimeIsUp);
  // If only the time of a part is over, its first round is still taken.
  int published = 0;
  interleave(one, {.most = 5, .own_end = Deadline::after(-1)},
             [&](const std::vector<Samples>&) { ++published; });
  EXPECT_EQ(published, 1);
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

TEST(BenchResult, SamplesThatAreFarApartMakeItUnsteady) {
  BenchResult result;
  result.value = samples_of({2, 3});
  result.limit = samples_of({4, 5});
  EXPECT_DOUBLE_EQ(result.spread(), 1.5);
  EXPECT_FALSE(result.is_unsteady());
  result.limit = samples_of({4, 9});
  EXPECT_DOUBLE_EQ(result.spread(), 2.25);
  EXPECT_TRUE(result.is_unsteady());
  // One round does not show the spread.
  result.value = result.limit = samples_of({2});
  EXPECT_TRUE(result.is_unsteady());
  // Value and limit are each within a factor of 2, and the ratios of the rounds are not.
  result.value = samples_of({2, 3});
  result.limit = samples_of({6, 4});
  EXPECT_DOUBLE_EQ(result.spread(), 2.25);
}

BenchResult result_named(const std::string& name, const Samples& samples) {
  BenchResult result;
  result.name = name;
  result.value = result.limit = samples;
  return result;
}

TEST(BenchRecord, KnowsWhatIsMissing) {
  BenchRecord record;
  record.expect({"a", "b", "c"});
  record.put(result_named("b", samples_of({1})));
  record.put(result_named("b", samples_of({1, 2})));
  ASSERT_EQ(record.results().size(), 1U);
  EXPECT_EQ(record.results()[0].value.count(), 2);
  EXPECT_EQ(record.missing(), (std::vector<std::string>{"a", "c"}));
  EXPECT_TRUE(record.is_cut_short());
  record.leave_out("a");
  record.put(result_named("c", samples_of({1})));
  EXPECT_FALSE(record.is_cut_short());
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
