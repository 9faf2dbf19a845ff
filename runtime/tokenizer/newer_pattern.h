#pragma once

#include <string>
#include <string_view>

namespace terrace {

// Returns a pattern that matches the same as `pattern`, also in texts with code points that are
// newer than PCRE2's Unicode: \p{L}, \p{Lu} and the like include newer_categories(), and \s is
// Unicode's white space. An escape that has no such form stays as it is: \P{..} and \S in brackets,
// \w, \d,
// \b, [:alpha:].
std::string with_newer_categories(std::string_view pattern);

// Returns whether a pattern has an escape that with_newer_categories() leaves as it is and whose
// meaning depends on the version of Unicode.
bool has_older_classes(std::string_view pattern);

}  // namespace terrace
