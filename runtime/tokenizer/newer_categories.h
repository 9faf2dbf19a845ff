#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace terrace {

// A range of code points, and their general category: "Lu", "So".
struct CategoryRange {
  std::uint32_t first = 0;
  std::uint32_t last = 0;
  std::string_view category;
};

// Returns the code points that Unicode 14 does not have, with the categories that they have in the
// patterns of Hugging Face's `tokenizers`. PCRE2 10.42 does not know them.
std::span<const CategoryRange> newer_categories();

}  // namespace terrace
