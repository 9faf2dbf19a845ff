#include "runtime/report/curve_chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "runtime/report/chart_axis.h"
#include "runtime/report/html_text.h"
#include "runtime/report/number_text.h"

namespace terrace::report {
namespace {

constexpr double kWidth = 440;
constexpr double kHeight = 220;
constexpr double kLeft = 46;
constexpr double kRight = 428;
constexpr double kTop = 10;
constexpr double kBottom = 192;

// The ends of the axes, and how many values lie above the upper end.
struct ChartRange {
  AxisRange x;
  AxisRange y;
  std::size_t cut_groups = 0;
};

// Returns where the axis ends so that a few values far above all others do not flatten the curve.
double end_without_outliers(const std::vector<Curve>& curves, double high) {
  std::vector<double> values;
  for (const Curve& curve : curves) {
    for (const ValueGroup& group : curve.values.groups) values.push_back(group.high);
  }
  constexpr double kMost = 0.97;
  constexpr double kFar = 2.5;
  const double usual = quantile(values, kMost);
  return usual > 0 && high > kFar * usual ? 1.2 * usual : high;
}

ChartRange range_of(const CurveChart& chart) {
  ChartRange range;
  bool is_first = true;
  for (const Curve& curve : chart.curves) {
    if (curve.values.values == 0) continue;
    const GroupedSeries& values = curve.values;
    if (is_first) {
      range = {{values.x_first, values.x_last}, {values.low, values.high}, 0};
      is_first = false;
    }
    range.x = {std::min(range.x.low, values.x_first), std::max(range.x.high, values.x_last)};
    range.y = {std::min(range.y.low, values.low), std::max(range.y.high, values.high)};
  }
  if (chart.cuts_outliers) range.y.high = end_without_outliers(chart.curves, range.y.high);
  const double shown = range.y.high;
  if (chart.reference) {
    range.y = {std::min(range.y.low, *chart.reference), std::max(range.y.high, *chart.reference)};
  }
  const AxisRange room = padded(range.y);
  const bool is_positive = range.y.low >= 0;
  range.y = {chart.from_zero && is_positive ? 0 : room.low, room.high};
  if (!(range.x.high > range.x.low)) range.x = padded(range.x);
  for (const Curve& curve : chart.curves) {
    for (const ValueGroup& group : curve.values.groups) {
      range.cut_groups += chart.cuts_outliers && group.high > std::max(shown, range.y.high) ? 1 : 0;
    }
  }
  return range;
}

std::string axes_of(const AxisScale& x, const AxisScale& y, const std::string& x_name) {
  std::string svg = "<g class=\"axes\">\n";
  for (const double tick : axis_ticks(y.range(), 5)) {
    const double at = y.place(tick);
    svg += fmt::format(
        "<line x1=\"{:.0f}\" x2=\"{:.0f}\" y1=\"{:.1f}\" y2=\"{:.1f}\"/>"
        "<text x=\"{:.0f}\" y=\"{:.1f}\" class=\"e\">{}</text>\n",
        kLeft, kRight, at, at, kLeft - 6, at + 4, tick_text(std::abs(tick) < 1e-300 ? 0 : tick));
  }
  for (const double tick : axis_ticks(x.range(), 6)) {
    const double at = x.place(tick);
    if (at > kRight - 44) continue;  // the axis's name stands there
    svg += fmt::format("<text x=\"{:.1f}\" y=\"{:.0f}\" class=\"m\">{}</text>\n", at, kBottom + 17,
                       tick_text(std::abs(tick) < 1e-300 ? 0 : tick));
  }
  return svg + fmt::format("<text x=\"{:.0f}\" y=\"{:.0f}\" class=\"e\">{}</text>\n</g>\n", kRight,
                           kBottom + 17, escaped(x_name));
}

class CurvePainter {
 public:
  CurvePainter(const AxisScale& x, const AxisScale& y) : x_(x), y_(y) {}

  std::string paint(const Curve& curve) const {
    const std::vector<ValueGroup>& groups = curve.values.groups;
    std::string svg;
    if (groups.empty()) return svg;
    const int colour = curve.colour % kCurveColours;
    if (curve.values.values_of_each > 1) {
      svg += fmt::format("<polygon class=\"band c{}\" points=\"", colour);
      for (const ValueGroup& group : groups) svg += point(group.x, group.high);
      for (auto group = groups.rbegin(); group != groups.rend(); ++group) {
        svg += point(group->x, group->low);
      }
      svg += "\"/>\n";
    }
    svg += fmt::format("<polyline class=\"curve c{}\" data-name=\"{}\" points=\"", colour,
                       escaped(curve.name));
    for (const ValueGroup& group : groups) svg += point(group.x, group.mean);
    svg += "\"/>\n";
    if (!curve.has_dots && groups.size() > 1) return svg;
    constexpr std::size_t kMostDots = 60;
    if (groups.size() > kMostDots) return svg;
    for (const ValueGroup& group : groups) {
      svg += fmt::format("<circle class=\"dot c{}\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3\"/>\n",
                         colour, x_.place(group.x), y_.place(group.mean));
    }
    return svg;
  }

  // Returns a dashed line across the chart.
  std::string paint_reference(double value) const {
    return fmt::format(
        "<line class=\"reference\" x1=\"{:.0f}\" x2=\"{:.0f}\" y1=\"{:.1f}\" y2=\"{:.1f}\"/>\n",
        kLeft, kRight, y_.place(value), y_.place(value));
  }

 private:
  // Values beyond the axis lie on its end, which is cut where the chart says so.
  std::string point(double x, double y) const {
    return fmt::format("{:.1f},{:.1f} ", x_.place(x), y_.place(std::min(y, y_.range().high)));
  }

  const AxisScale& x_;
  const AxisScale& y_;
};

// Returns a place on the x axis: "step 5", "0.93 seconds".
std::string place_text(const CurveChart& chart, double x) {
  if (chart.x_name == "step") return "step " + number_text(x);
  return number_text(x) + " " + chart.x_name;
}

std::string in_words(const CurveChart& chart) {
  std::string text;
  for (const Curve& curve : chart.curves) {
    const GroupedSeries& values = curve.values;
    if (values.values == 0) continue;
    text += fmt::format("{}{}: {} at {}, {} at {}; lowest {} at {}, highest {} at {}.",
                        text.empty() ? "" : " ", curve.name, number_text(values.first),
                        place_text(chart, values.x_first), number_text(values.last),
                        place_text(chart, values.x_last), number_text(values.low),
                        place_text(chart, values.x_low), number_text(values.high),
                        place_text(chart, values.x_high));
  }
  if (chart.reference) {
    text += fmt::format(" {}: {}.", chart.reference_name, number_text(*chart.reference));
  }
  return text;
}

std::string legend_of(const CurveChart& chart) {
  if (chart.curves.size() < 2 && !chart.reference) return "";
  std::string html = "<ul class=\"legend\">";
  for (const Curve& curve : chart.curves) {
    if (curve.values.values == 0) continue;
    html += fmt::format("<li>{}{}</li>",
                        curve_key(fmt::format("curve c{}", curve.colour % kCurveColours)),
                        escaped(curve.name));
  }
  if (chart.reference) {
    html += fmt::format("<li>{}{}</li>", curve_key("reference"), escaped(chart.reference_name));
  }
  return html + "</ul>\n";
}

// Says what a reader cannot see: values that share a point, and values beyond the axis.
std::string notes_of(const CurveChart& chart, const ChartRange& range) {
  std::string text;
  std::size_t most = 1;
  for (const Curve& curve : chart.curves) most = std::max(most, curve.values.values_of_each);
  if (most > 1) {
    text += fmt::format(
        "Each point is the mean of up to {} values; the band spans the lowest and the highest.",
        count_text(static_cast<std::int64_t>(most)));
  }
  double highest = 0;
  for (const Curve& curve : chart.curves) highest = std::max(highest, curve.values.high);
  if (range.cut_groups > 0) {
    text += fmt::format("{}{} above the end of the axis; the highest value is {}.",
                        text.empty() ? "" : " ",
                        range.cut_groups == 1 ? std::string("1 point lies")
                                              : fmt::format("{} points lie", range.cut_groups),
                        number_text(highest));
  }
  return text.empty() ? text : paragraph(text, "note");
}

}  // namespace

std::string curve_figure(const CurveChart& chart) {
  const bool has_values =
      std::ranges::any_of(chart.curves, [](const Curve& curve) { return curve.values.values > 0; });
  if (!has_values) return "";
  const ChartRange range = range_of(chart);
  const AxisScale x(range.x, kLeft, kRight);
  const AxisScale y(range.y, kBottom, kTop);
  std::string html = fmt::format(
      "<figure class=\"chart\">\n<figcaption>{0} <span class=\"unit\">{1}</span></figcaption>\n"
      "<svg viewBox=\"0 0 {2:.0f} {3:.0f}\" role=\"img\" aria-labelledby=\"{4}-t {4}-d\" "
      "data-x=\"{5} {6} {7:.0f} {8:.0f}\" data-y=\"{9} {10} {11:.0f} {12:.0f}\" "
      "data-x-name=\"{13}\">\n"
      "<title id=\"{4}-t\">{0}, by {13}</title>\n<desc id=\"{4}-d\">{14}</desc>\n",
      escaped(chart.title), escaped(chart.unit), kWidth, kHeight, chart.id, range.x.low,
      range.x.high, kLeft, kRight, range.y.low, range.y.high, kBottom, kTop, escaped(chart.x_name),
      escaped(in_words(chart)));
  html += axes_of(x, y, chart.x_name);
  const CurvePainter painter(x, y);
  if (chart.reference) html += painter.paint_reference(*chart.reference);
  for (const Curve& curve : chart.curves) html += painter.paint(curve);
  return html + "</svg>\n" + legend_of(chart) + notes_of(chart, range) + "</figure>\n";
}

}  // namespace terrace::report
