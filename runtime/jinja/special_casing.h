#pragma once

#include <string_view>

namespace terrace::jinja {

// A code point whose upper or title form has several code points, from SpecialCasing.txt of
// Unicode.
struct SpecialCasing {
  char32_t code_point;
  std::string_view upper;
  std::string_view title;
};

// Returns the forms of the code point; null where both have one code point.
const SpecialCasing* find_special_casing(char32_t code_point);

}  // namespace terrace::jinja
