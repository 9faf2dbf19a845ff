#pragma once

#include <cstdint>
#include <string>
#include <string_view>

// Upper and lower forms of texts, as Python's str has them.
namespace terrace::jinja {

std::string upper(std::string_view text);
std::string lower(std::string_view text);
// Returns the text with its first letter as an upper one, and the others as lower ones.
std::string capitalize(std::string_view text);
// Returns the text with each letter that follows no letter as an upper one, and the others as lower
// ones: str.title().
std::string title(std::string_view text);
// Returns the text with each word that follows white space or one of - ( { [ < capitalized: the
// filter title of Jinja2.
std::string title_of_words(std::string_view text);

// Return whether the text has letters with case, all upper ones, or all lower ones.
bool is_upper(std::string_view text);
bool is_lower(std::string_view text);
// Returns the number of words: of letters, digits and underscores next to each other.
std::int64_t count_words(std::string_view text);

bool is_letter(char32_t code_point);
// Returns whether the code point is a digit of the decimal system.
bool is_decimal(char32_t code_point);
// Returns whether the code point is a digit or stands for a number in another way.
bool is_numeric(char32_t code_point);

}  // namespace terrace::jinja
