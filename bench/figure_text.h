#pragma once

#include <cstddef>
#include <string>
#include <string_view>

// Figures and text of tables for consoles.
namespace terrace {

inline constexpr std::size_t kTableColumns = 100;

// A unit as people read it, and what a figure in the unit of the documents is multiplied by.
struct ShownUnit {
  std::string name;
  double factor = 1;
};

// The step of the unit's ladder ("KB/s", "MB/s", "GB/s") in which the figure has one to three
// digits before the point, as far as the ladder goes. A unit without one is itself.
ShownUnit shown_unit(double value, std::string_view unit);

// "1234", "12.3", "0.0123": four digits or fewer.
std::string short_number(double value);
// "812 MB/s".
std::string figure_text(double value, std::string_view unit);

// The text in lines of at most kTableColumns columns, each behind `indent` spaces and with a line
// feed; the lines after the first have two more.
std::string wrapped(std::string_view text, std::size_t indent);

}  // namespace terrace
