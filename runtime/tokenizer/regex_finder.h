#pragma once

#include <memory>
#include <string>

#include "runtime/tokenizer/pre_tokenizer.h"

namespace terrace {

// Compiles a pattern of Oniguruma's kind with PCRE2. Throws ConfigError, which begins with `where`,
// for one that PCRE2 does not take, and for signs that mean something else to Oniguruma (&& in a
// class, \h). Its find_all() throws ConfigError where a text is too much for the pattern.
std::unique_ptr<PatternFinder> make_regex_finder(const std::string& pattern,
                                                 const std::string& where);

// Returns the version of Unicode that PCRE2 has its classes from.
std::string regex_unicode_version();

}  // namespace terrace
