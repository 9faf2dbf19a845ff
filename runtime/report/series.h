#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace terrace::report {

// Values over steps, or over another quantity that only grows. All are finite.
struct Series {
  std::vector<double> x;
  std::vector<double> y;

  bool is_empty() const { return x.empty(); }
};

// Returns the pairs of which both values are finite. The spans have the same size.
Series finite_series(std::span<const double> x, std::span<const double> y);

// Neighbouring values of a series, as one point of a curve.
struct ValueGroup {
  double x = 0;  // mean
  double mean = 0;
  double low = 0;
  double high = 0;
};

// A series with at most as many points as a chart has room for. The mean, the least and the
// greatest value of each group are kept, so no spike disappears.
struct GroupedSeries {
  std::vector<ValueGroup> groups;
  std::size_t values_of_each = 1;  // the last group may have fewer
  std::size_t values = 0;
  double first = 0;  // exact, as are the following
  double last = 0;
  double low = 0;
  double high = 0;
  double x_first = 0;
  double x_last = 0;
  double x_low = 0;
  double x_high = 0;
};

// Groups as few values as possible. `most_groups` is positive.
GroupedSeries grouped(const Series& series, std::size_t most_groups);

// Returns the value below which this share of the values lies; 0 for no values.
double quantile(std::vector<double> values, double share);

// Returns the sum of the finite values.
double finite_sum(std::span<const double> values);

}  // namespace terrace::report
