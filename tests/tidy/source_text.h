#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace terrace::tidy {

// Views of C++ source for rules that look at text. Blanking writes spaces over what is left out and
// keeps every newline, so that lines and columns stay what they were.

// Comments blanked; strings stay.
std::string blank_comments(std::string_view text);

// Comments and the insides of string and character literals blanked; the quotes stay.
std::string blank_comments_and_literals(std::string_view text);

// Preprocessor directives blanked, with the lines they continue on. Wants comments blanked already.
std::string blank_directives(std::string_view text);

// The lines without their newlines.
std::vector<std::string_view> split_lines(std::string_view text);

// Whether the word stands in the line as a whole word (letters, digits and _ make words).
bool has_word(std::string_view line, std::string_view word);

// Lower case of ASCII letters.
std::string lower(std::string_view text);

// Without the white space at both ends.
std::string_view trim(std::string_view text);

}  // namespace terrace::tidy
