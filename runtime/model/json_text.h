#pragma once

#include <string>
#include <string_view>

// Python's json writes NaN, Infinity and -Infinity, which are not JSON.
namespace terrace {

// Returns the text with each of these numbers as a string that no file has, so that it can be
// parsed. Text inside strings stays as it is.
std::string quote_non_finite(std::string_view json);

// Undoes quote_non_finite(): returns its text, or a dump of the values that were parsed from it,
// with the numbers as they were.
std::string unquote_non_finite(std::string_view json);

}  // namespace terrace
