#include "runtime/bench/samples.h"

#include <algorithm>

#include "base/check.h"
#include "base/clock.h"

namespace terrace {
namespace {

// Nanoseconds of a call, the mean of as many as begin within so long; one at least.
double ns_of(const std::function<void()>& call, std::int64_t within_ns) {
  const SystemClock clock;
  const std::int64_t begin_ns = clock.now_ns();
  std::int64_t end_ns = begin_ns;
  double calls = 0;
  do {
    call();
    end_ns = clock.now_ns();
    ++calls;
  } while (end_ns - begin_ns < within_ns);
  return static_cast<double>(end_ns - begin_ns) / calls;
}

}  // namespace

double Samples::median() const {
  TERRACE_CHECK(!values_.empty());
  std::vector<double> sorted = values_;
  std::sort(sorted.begin(), sorted.end());
  const std::size_t middle = sorted.size() / 2;
  return sorted.size() % 2 == 1 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}

double Samples::low() const {
  TERRACE_CHECK(!values_.empty());
  return *std::min_element(values_.begin(), values_.end());
}

double Samples::high() const {
  TERRACE_CHECK(!values_.empty());
  return *std::max_element(values_.begin(), values_.end());
}

Samples Samples::mapped(const std::function<double(double)>& map) const {
  Samples out;
  for (const double value : values_) out.add(map(value));
  return out;
}

Samples ratios_of_rounds(const Samples& values, const Samples& limits) {
  TERRACE_CHECK_EQ(values.count(), limits.count());
  Samples ratios;
  for (std::size_t i = 0; i < values.values().size(); ++i) {
    ratios.add(values.values()[i] / limits.values()[i]);
  }
  return ratios;
}

std::size_t highest_of(std::span<const Samples> samples) {
  TERRACE_CHECK(!samples.empty());
  const auto best = std::ranges::max_element(samples, {}, &Samples::median);
  return static_cast<std::size_t>(best - samples.begin());
}

std::vector<Samples> interleave(std::span<const Measurement> measurements, int rounds) {
  std::vector<Samples> samples(measurements.size());
  for (std::size_t round = 0; round < static_cast<std::size_t>(rounds); ++round) {
    for (std::size_t i = 0; i < measurements.size(); ++i) {
      const std::size_t at = (i + round) % measurements.size();
      samples[at].add(measurements[at]());
    }
  }
  return samples;
}

std::size_t quickest_of(std::span<const std::function<void()>> ways) {
  constexpr int kTries = 3;
  constexpr std::int64_t kTryNs = 2'000'000;  // some calls are over in a microsecond
  constexpr double kLongNs = 2e8;
  if (ways.size() == 1) return 0;
  std::vector<double> least_ns;
  for (const std::function<void()>& way : ways) least_ns.push_back(ns_of(way, 0));
  if (std::ranges::min(least_ns) < kLongNs) {
    std::vector<Measurement> timed;
    for (const std::function<void()>& way : ways) {
      timed.emplace_back([&way] { return ns_of(way, kTryNs); });
    }
    const std::vector<Samples> times = interleave(timed, kTries);
    for (std::size_t i = 0; i < times.size(); ++i) {
      least_ns[i] = std::min(least_ns[i], times[i].low());
    }
  }
  return static_cast<std::size_t>(std::ranges::min_element(least_ns) - least_ns.begin());
}

}  // namespace terrace
