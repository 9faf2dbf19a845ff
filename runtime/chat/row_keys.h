#pragma once

#include <string>
#include <string_view>

#include "base/error.h"
#include "runtime/jinja/value.h"

// The keys of a row of data, and the messages about them. python/terrace/data has the same
// messages.
namespace terrace {

inline constexpr const char* kConversationForms =
    "give \"messages\", a list of objects with \"role\" and \"content\", or another form that "
    "docs/conversations.md lists";

// Returns the error: `PLACE: key "KEY" WHAT`.
ConfigError wrong_key(const std::string& place, std::string_view key, std::string_view what,
                      const std::string& remedy = kConversationForms);

// Returns the kind of a value with its article: "a list".
std::string kind_of_value(const jinja::Value& value);

// Returns a short value itself, and the kind of any other.
std::string shown_value(const jinja::Value& value);

// Returns the mapping without the keys whose value is null.
jinja::Mapping without_nulls(const jinja::Mapping& values);

// Returns a value that has this text.
jinja::Value text_value(std::string_view text);

// Returns the text of a key. Throws ConfigError if the key is missing or has another value.
const std::string& text_at(const jinja::Mapping& row, std::string_view key,
                           const std::string& place);

// Returns the value of a text that is JSON. Throws ConfigError, naming the key, if it is not.
jinja::Value value_of_json(const std::string& text, std::string_view key, const std::string& place,
                           const std::string& remedy);

// Returns the text without the white space at both ends.
std::string_view without_space_around(std::string_view text);

}  // namespace terrace
