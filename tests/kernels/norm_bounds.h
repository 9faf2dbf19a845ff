#pragma once

#include <cmath>
#include <cstdint>

#include "tests/kernels/op_case.h"

// First-order rounding bounds of norms, with u the unit roundoff of fp32 and t the unit roundoff of
// the compute type. A mean of C terms has a relative error of (C+1) u of the mean of their sizes;
// 1/sqrt halves the relative error of its argument and adds 3 u of its own. kSlack u covers the few
// products, quotients and differences around them, and all second-order terms.
namespace terrace::test {

inline constexpr double kSlack = 10;

inline double slack_units(std::int64_t terms) { return units(terms) + kSlack * kUnitF32; }

// Returns the relative error of rstd.
inline double rstd_error(std::int64_t terms) {
  return slack_units(terms) / 2 + kSlack / 2 * kUnitF32;
}

// The numbers from which the bounds of one row's backward are computed. mean is 0 for the RMS norm;
// weight_offset is 1 where 1 is added to the weight.
struct NormRow {
  const double* dy = nullptr;
  const double* x = nullptr;
  const double* weight = nullptr;
  double mean = 0, rstd = 0, weight_offset = 0;
};

class NormBackwardRow {
 public:
  NormBackwardRow(const NormRow& row, std::int64_t width) : row_(row) {
    for (std::int64_t c = 0; c < width; ++c) {
      common_ += gradient(c) / static_cast<double>(width);
      along_ += gradient(c) * normed(c) / static_cast<double>(width);
    }
  }

  double normed(std::int64_t c) const { return std::abs((row_.x[c] - row_.mean) * row_.rstd); }
  // Returns the size of the terms of dx at c; their rounding errors are proportional to it.
  // Subtracting the mean is one more rounding relative to what is left, for mean and x are given
  // exactly.
  double size(std::int64_t c, bool centered) const {
    return row_.rstd * (gradient(c) + (centered ? common_ : 0.0) + normed(c) * along_);
  }

 private:
  double gradient(std::int64_t c) const {
    return std::abs(row_.dy[c] * (row_.weight[c] + row_.weight_offset));
  }

  NormRow row_;
  double common_ = 0;
  double along_ = 0;
};

}  // namespace terrace::test
