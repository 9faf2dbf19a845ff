#include "runtime/bench/samples.h"

#include <algorithm>

#include "base/check.h"

namespace terrace {

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

}  // namespace terrace
