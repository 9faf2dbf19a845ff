#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace terrace::tidy {

// Views of C++ source for rules that look at text. Blanking writes spaces over what is left out and
// keeps every newline, so that lines and columns stay what they were.

// Returns the text with comments blanked; strings stay.
std::string blank_comments(std::string_view text);

// Returns the text with comments and the insides of string and character literals blanked. The
// quotes stay.
std::string blank_comments_and_literals(std::string_view text);

// Returns the text with preprocessor directives blanked, and the lines that they continue on.
// Comments must be blanked already.
std::string blank_directives(std::string_view text);

// Returns the lines without their newlines.
std::vector<std::string_view> split_lines(std::string_view text);

// Returns whether the line has the word as a whole word (letters, digits and _ make words).
bool has_word(std::string_view line, std::string_view word);

// Returns the text with its ASCII letters in lower case.
std::string lower(std::string_view text);

// Returns the text without the white space at both ends.
std::string_view trim(std::string_view text);

}  // namespace terrace::tidy
