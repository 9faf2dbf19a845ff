#include "runtime/report/series.h"

#include <algorithm>
#include <cmath>

namespace terrace::report {

Series finite_series(std::span<const double> x, std::span<const double> y) {
  Series series;
  for (std::size_t i = 0; i < std::min(x.size(), y.size()); ++i) {
    if (!std::isfinite(x[i]) || !std::isfinite(y[i])) continue;
    series.x.push_back(x[i]);
    series.y.push_back(y[i]);
  }
  return series;
}

GroupedSeries grouped(const Series& series, std::size_t most_groups) {
  GroupedSeries result;
  const std::size_t values = series.x.size();
  result.values = values;
  if (values == 0) return result;
  result.values_of_each = (values + most_groups - 1) / most_groups;
  for (std::size_t begin = 0; begin < values; begin += result.values_of_each) {
    const std::size_t end = std::min(begin + result.values_of_each, values);
    ValueGroup group = {.low = series.y[begin], .high = series.y[begin]};
    for (std::size_t i = begin; i < end; ++i) {
      group.x += series.x[i] / static_cast<double>(end - begin);
      group.mean += series.y[i] / static_cast<double>(end - begin);
      group.low = std::min(group.low, series.y[i]);
      group.high = std::max(group.high, series.y[i]);
    }
    result.groups.push_back(group);
  }
  const auto [low, high] = std::ranges::minmax_element(series.y);
  result.first = series.y.front();
  result.last = series.y.back();
  result.low = *low;
  result.high = *high;
  result.x_first = series.x.front();
  result.x_last = series.x.back();
  result.x_low = series.x[static_cast<std::size_t>(low - series.y.begin())];
  result.x_high = series.x[static_cast<std::size_t>(high - series.y.begin())];
  return result;
}

double quantile(std::vector<double> values, double share) {
  if (values.empty()) return 0;
  const auto last = static_cast<double>(values.size() - 1);
  const auto at = static_cast<std::ptrdiff_t>(std::lround(share * last));
  std::ranges::nth_element(values, values.begin() + at);
  return values[static_cast<std::size_t>(at)];
}

double finite_sum(std::span<const double> values) {
  double sum = 0;
  for (const double value : values) sum += std::isfinite(value) ? value : 0;
  return sum;
}

}  // namespace terrace::report
