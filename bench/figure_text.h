#pragma once

#include <cstddef>
#include <string>
#include <string_view>

// Figures and text of tables for consoles.
namespace terrace {

inline constexpr std::size_t kTableColumns = 100;

// A unit as people read it, and the factor that turns a figure in the documents' unit into it.
struct ShownUnit {
  std::string name;
  double factor = 1;
};

// Returns the step of the unit's ladder ("KB/s", "MB/s", "GB/s") in which the figure has one to
// three digits before the point, as far as the ladder goes. A unit without a ladder is returned as
// it is.
ShownUnit shown_unit(double value, std::string_view unit);

// Writes a number with four digits or fewer: "1234", "12.3", "0.0123".
std::string short_number(double value);
// Writes a figure with its unit: "812 MB/s".
std::string figure_text(double value, std::string_view unit);

// Returns the text in lines of at most kTableColumns columns. Each begins with `indent` spaces (two
// more after the first line) and ends with a line feed.
std::string wrapped(std::string_view text, std::size_t indent);

}  // namespace terrace
