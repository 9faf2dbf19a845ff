#pragma once

#include <optional>
#include <string>
#include <vector>

#include "runtime/report/series.h"

namespace terrace::report {

// The points that a curve has at most; a page of many runs has fewer.
inline constexpr std::size_t kCurvePoints = 360;
// The number of colours of curves. Further curves begin with the first colour again.
inline constexpr int kCurveColours = 8;

struct Curve {
  std::string name;  // plain text
  GroupedSeries values;
  int colour = 0;
  bool has_dots = false;  // marks each point, for few values
};

struct CurveChart {
  std::string id;     // unique on the page, letters and digits
  std::string title;  // plain text, as are the others
  std::string unit;
  std::string x_name = "step";
  std::vector<Curve> curves = {};
  // A dashed line at a value, with a name.
  std::optional<double> reference = std::nullopt;
  std::string reference_name = {};
  bool from_zero = false;
  // Cuts the axis where few values lie far above all others, and says so.
  bool cuts_outliers = false;
};

// Returns the chart as a figure with a legend, a description for screen readers, and a sentence if
// several values share a point. Returns nothing if no curve has a value.
std::string curve_figure(const CurveChart& chart);

}  // namespace terrace::report
