#include "runtime/chat/row_keys.h"

#include <fmt/format.h>

#include <cstddef>

#include "runtime/jinja/json_value.h"
#include "runtime/jinja/python_text.h"

namespace terrace {

using jinja::Mapping;
using jinja::Value;

ConfigError wrong_key(const std::string& place, std::string_view key, std::string_view what,
                      const std::string& remedy) {
  return {fmt::format("{}: key \"{}\" {}", place, key, what), remedy};
}

std::string kind_of_value(const Value& value) {
  if (value.is_text()) return "a text";
  if (value.is_bool()) return "a truth value";
  if (value.is_number()) return "a number";
  if (value.is_list()) return "a list";
  return value.is_mapping() ? "an object" : "null";
}

std::string shown_value(const Value& value) {
  constexpr std::size_t kLongestBytes = 40;
  if (value.is_text() && value.text().size() <= kLongestBytes) {
    return fmt::format("\"{}\"", value.text());
  }
  if (value.is_bool()) return value.boolean() ? "true" : "false";
  return value.is_integer() ? fmt::format("{}", value.integer()) : kind_of_value(value);
}

Mapping without_nulls(const Mapping& values) {
  Mapping kept;
  for (const auto& [key, value] : values.entries()) {
    if (!value.is_none()) kept.set(key, value);
  }
  return kept;
}

Value text_value(std::string_view text) { return Value(std::string(text)); }

const std::string& text_at(const Mapping& row, std::string_view key, const std::string& place) {
  const Value* const value = row.find(key);
  if (value == nullptr) throw wrong_key(place, key, "is missing");
  if (!value->is_text()) {
    throw wrong_key(place, key, fmt::format("is {}, not a text", kind_of_value(*value)));
  }
  return value->text();
}

Value value_of_json(const std::string& text, std::string_view key, const std::string& place,
                    const std::string& remedy) {
  try {
    return jinja::parse_json_value(text, place);
  } catch (const CorruptData&) {
    throw wrong_key(place, key, "is a text that is not JSON", remedy);
  }
}

std::string_view without_space_around(std::string_view text) {
  return jinja::strip_end(jinja::strip_front(text));
}

}  // namespace terrace
