#include "runtime/report/chart_axis.h"

#include <algorithm>
#include <cmath>

namespace terrace::report {

AxisRange padded(AxisRange range) {
  double room = 0.04 * (range.high - range.low);
  if (!(room > 0)) room = std::max(std::abs(range.high) * 0.1, 1e-9);
  return {range.low - room, range.high + room};
}

std::vector<double> axis_ticks(AxisRange range, int most) {
  std::vector<double> ticks;
  const double size = range.high - range.low;
  if (!(size > 0) || !std::isfinite(size)) return ticks;
  const double least = size / most;
  double step = std::pow(10.0, std::floor(std::log10(least)));
  for (const double factor : {1.0, 2.0, 5.0, 10.0}) {
    if (step * factor < least) continue;
    step *= factor;
    break;
  }
  const double first = std::ceil(range.low / step);
  for (double i = first; i * step <= range.high && ticks.size() < 50; ++i) {
    ticks.push_back(i * step);
  }
  return ticks;
}

}  // namespace terrace::report
