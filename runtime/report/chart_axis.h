#pragma once

#include <vector>

namespace terrace::report {

struct AxisRange {
  double low = 0;
  double high = 1;
};

// Returns a range that is not empty and has a little room at both ends.
AxisRange padded(AxisRange range);

// Returns round values within the range, at most about `most` of them, and at least one for a range
// that is not empty.
std::vector<double> axis_ticks(AxisRange range, int most);

// Maps values to places on a page. `begin` is the place of the low end.
class AxisScale {
 public:
  AxisScale(AxisRange range, double begin, double end)
      : range_(range), begin_(begin), per_value_((end - begin) / (range.high - range.low)) {}

  double place(double value) const { return begin_ + (value - range_.low) * per_value_; }
  const AxisRange& range() const { return range_; }

 private:
  AxisRange range_;
  double begin_;
  double per_value_;
};

}  // namespace terrace::report
