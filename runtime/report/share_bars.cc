#include "runtime/report/share_bars.h"

#include <fmt/format.h>

#include <algorithm>

#include "runtime/report/html_text.h"

namespace terrace::report {

std::string share_bar(const ShareBar& bar, std::string (*words)(double)) {
  constexpr double kWidth = 600;
  double sum = 0;
  std::string description;
  for (const BarPart& part : bar.parts) {
    sum += part.value;
    if (part.value <= 0) continue;
    description +=
        fmt::format("{}{} {}", description.empty() ? "" : ", ", part.name, words(part.value));
  }
  const double whole = std::max({bar.whole, sum, bar.marker.value_or(0), 1e-300});
  const auto place = [whole](double value) { return kWidth * value / whole; };
  std::string svg = fmt::format(
      "<svg class=\"bar\" viewBox=\"0 0 600 22\" preserveAspectRatio=\"none\" role=\"img\" "
      "aria-labelledby=\"{0}-t {0}-d\">\n<title id=\"{0}-t\">{1}</title>\n"
      "<desc id=\"{0}-d\">{2}.</desc>\n<rect class=\"rest\" x=\"0\" y=\"3\" width=\"600\" "
      "height=\"16\"/>\n",
      bar.id, escaped(bar.title), escaped(description.empty() ? "nothing" : description));
  double begin = 0;
  for (const BarPart& part : bar.parts) {
    if (part.value <= 0) continue;
    svg += fmt::format(
        "<rect class=\"{}\" x=\"{:.2f}\" y=\"3\" width=\"{:.2f}\" height=\"16\"><title>{}: "
        "{}</title></rect>\n",
        part.css_class, place(begin), place(part.value), escaped(part.name),
        escaped(words(part.value)));
    begin += part.value;
  }
  if (bar.marker) {
    svg += fmt::format("<rect class=\"marker\" x=\"{:.2f}\" y=\"0\" width=\"2\" height=\"22\"/>\n",
                       std::min(place(*bar.marker), kWidth - 2));
  }
  return svg + "</svg>\n";
}

}  // namespace terrace::report
