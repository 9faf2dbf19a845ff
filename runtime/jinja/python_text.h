#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/jinja/value.h"

// Values as the texts that Python makes of them, and texts as Python sees them: as sequences of
// code points.
namespace terrace::jinja {

// Returns str(value). An undefined value gives an empty text, as in Jinja2.
std::string str(const Value& value);
// Returns repr(value).
std::string repr(const Value& value);

struct JsonStyle {
  bool ensure_ascii = false;  // escapes what is not ASCII
  std::string indent;         // of each level; without is_indented all is one line
  bool is_indented = false;
  std::string between = ", ";
  std::string after_key = ": ";
  bool sorts_keys = false;
};
// Returns json.dumps(value). Throws RenderError for a value that JSON does not have.
std::string to_json(const Value& value, const JsonStyle& style);

// Returns whether Python's str.isspace() holds for the code point.
bool is_space(char32_t code_point);
// Returns the number of code points of a text.
std::size_t length_of(std::string_view text);
// Returns the code points, each as a text.
std::vector<std::string_view> characters_of(std::string_view text);
// Returns where `wanted` stands first in the text from `from` on; npos where it does not. Takes
// time in proportion to the text, whatever the two are.
std::size_t find_in(std::string_view text, std::string_view wanted, std::size_t from = 0);
// Returns the text without code points at its front, or end, that are in `characters`; or without
// white space, where there is no such argument.
std::string_view strip_front(std::string_view text,
                             std::optional<std::string_view> characters = {});
std::string_view strip_end(std::string_view text, std::optional<std::string_view> characters = {});

}  // namespace terrace::jinja
