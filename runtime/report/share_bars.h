#pragma once

#include <optional>
#include <string>
#include <vector>

namespace terrace::report {

struct BarPart {
  std::string name;  // plain text
  double value = 0;
  std::string css_class;  // its colour
};

// A bar of parts in a row, against a whole.
struct ShareBar {
  std::string id;     // unique on the page, letters and digits
  std::string title;  // for screen readers, plain text
  std::vector<BarPart> parts;
  double whole = 0;              // the length of the bar; at least the sum of the parts
  std::optional<double> marker;  // a line at this value
};

// Returns the bar as a picture. Its description says the value of each part, made by `words`.
std::string share_bar(const ShareBar& bar, std::string (*words)(double));

}  // namespace terrace::report
