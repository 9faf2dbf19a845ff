#pragma once

#include <string_view>

namespace terrace {

// So many lists and objects within each other are more than any file of a model or of data has.
// What walks through parsed JSON calls itself for each, and a file may not decide how deep that
// goes.
inline constexpr int kJsonLevels = 256;

// Whether a text of JSON has more of them within each other than `levels`. Looks at brackets
// outside of strings alone, and so at text that is no JSON, too.
bool nests_deeper(std::string_view json, int levels = kJsonLevels);

}  // namespace terrace
