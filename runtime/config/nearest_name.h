#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace terrace {

// Letters to insert, remove or change to make one text of the other.
std::size_t edit_distance(std::string_view a, std::string_view b);

// The first of the names with the least edit distance to `text`; empty without names.
std::string nearest_name(std::string_view text, std::span<const std::string_view> names);

}  // namespace terrace
