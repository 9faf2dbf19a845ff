#pragma once

#include <string_view>

namespace terrace::tidy {

// Returns the pattern of stilted English that a sentence matches, or an empty text. A pattern is a
// hint: such sentences leave out the noun that a reader needs ("Of those that ...", "What is ...").
// docs/testing.md says how the counts of a folder may change.
std::string_view stilted_pattern(std::string_view sentence);

}  // namespace terrace::tidy
