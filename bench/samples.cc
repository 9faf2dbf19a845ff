#include "bench/samples.h"

#include <algorithm>
#include <cmath>
#include <limits>

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

double Samples::spread() const {
  if (high() == low()) return 1;
  return low() > 0 ? high() / low() : std::numeric_limits<double>::infinity();
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

double percentile_of(std::span<const double> values, double percent) {
  TERRACE_CHECK(!values.empty());
  std::vector<double> sorted(values.begin(), values.end());
  const auto count = static_cast<double>(sorted.size());
  const auto rank = static_cast<std::size_t>(std::ceil(percent / 100 * count));
  const auto at = sorted.begin() + static_cast<std::ptrdiff_t>(std::max<std::size_t>(rank, 1) - 1);
  std::nth_element(sorted.begin(), at, sorted.end());
  return *at;
}

std::size_t highest_of(std::span<const Samples> samples) {
  TERRACE_CHECK(!samples.empty());
  const auto best = std::ranges::max_element(samples, {}, &Samples::median);
  return static_cast<std::size_t>(best - samples.begin());
}

}  // namespace terrace
