#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace terrace {

// Returns how many letters have to be inserted, removed or changed to turn one text into the other.
std::size_t edit_distance(std::string_view a, std::string_view b);

// Returns the first of the names with the least edit distance to `text`; empty without names.
std::string nearest_name(std::string_view text, std::span<const std::string_view> names);

}  // namespace terrace
