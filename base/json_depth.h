#pragma once

#include <string_view>

namespace terrace {

// The number of lists and objects that may be nested: more than any file of a model or of data has.
// Code that walks through parsed JSON calls itself for each level, and a file must not decide how
// deep that goes.
inline constexpr int kJsonLevels = 256;

// Returns whether a JSON text has more than `levels` lists and objects nested within each other.
// Looks only at brackets outside of strings, and so takes text that is no JSON, too.
bool nests_deeper(std::string_view json, int levels = kJsonLevels);

}  // namespace terrace
