#include "runtime/data/json_line.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/json_depth.h"

namespace terrace {
namespace {

using nlohmann::json;

// Returns what the parser says of a line, without the line's own text, which may be long.
std::string parse_reason_of(const json::exception& problem) {
  constexpr std::size_t kLongest = 200;
  const std::string what = problem.what();
  const std::size_t column = what.find("column ");
  const std::size_t begin = column == std::string::npos ? what.find("] ") + 2 : column;
  const std::size_t end = what.find("; last read", begin);
  return what.substr(begin, std::min(kLongest, end - begin));
}

json parse_line_object(std::string_view text, const std::string& place) {
  const std::string remedy =
      "a JSONL file has one complete object on each line and nothing after it; NaN, Infinity and "
      "halves of surrogate pairs are not valid JSON";
  if (nests_deeper(text)) {
    throw CorruptData(
        fmt::format("{}: lists and objects are nested more than {} deep", place, kJsonLevels),
        remedy);
  }
  json parsed;
  try {
    parsed = json::parse(text);
  } catch (const json::exception& problem) {
    throw CorruptData(fmt::format("{}: not a JSON object: {}", place, parse_reason_of(problem)),
                      remedy);
  }
  if (parsed.is_object()) return parsed;
  throw CorruptData(
      fmt::format("{}: not a JSON object: it is of type {}", place, parsed.type_name()), remedy);
}

// Returns a value as a whole number; the least one for a value that is none.
std::int64_t number_of(const json& value, bool takes_bool) {
  constexpr std::uint64_t kMost = std::numeric_limits<std::int64_t>::max();
  if (takes_bool && value.is_boolean()) return value.get<bool>() ? 1 : 0;
  if (value.is_number_unsigned()) {
    return static_cast<std::int64_t>(std::min(value.get<std::uint64_t>(), kMost));
  }
  if (value.is_number_integer()) return value.get<std::int64_t>();
  return std::numeric_limits<std::int64_t>::min();
}

}  // namespace

struct JsonLine::Object {
  json value;

  const json& at(std::string_view key) const { return value.at(std::string(key)); }
};

JsonLine::JsonLine(std::string_view text, std::string place)
    : place_(std::move(place)),
      object_(std::make_unique<const Object>(Object{parse_line_object(text, place_)})) {}

JsonLine::~JsonLine() = default;

bool JsonLine::has(std::string_view key) const {
  return object_->value.contains(key) && !object_->value.at(key).is_null();
}

bool JsonLine::has_text(std::string_view key) const {
  return has(key) && object_->value.at(key).is_string();
}

std::vector<std::string> JsonLine::keys() const {
  std::vector<std::string> keys;
  for (const auto& [key, value] : object_->value.items()) keys.push_back(key);
  return keys;
}

std::string JsonLine::text(std::string_view key) const {
  const json& value = object_->at(key);
  if (!value.is_string()) {
    throw wrong(key,
                fmt::format("is a {}, not a text", value.is_array() ? "list" : value.type_name()),
                kJsonLineForms);
  }
  return value.get<std::string>();
}

std::vector<std::int64_t> JsonLine::numbers(std::string_view key,
                                            const JsonNumbers& allowed) const {
  const json& list = object_->at(key);
  if (!list.is_array()) {
    throw wrong(key, fmt::format("is a {}, not a list", list.type_name()), kJsonLineForms);
  }
  std::vector<std::int64_t> numbers;
  numbers.reserve(list.size());
  for (const json& value : list) {
    const std::int64_t number = number_of(value, allowed.takes_bool);
    if (number < allowed.low || number >= allowed.high) {
      const std::string low = allowed.low < 0 ? fmt::format("from {} to ", allowed.low) : "";
      throw wrong(key,
                  fmt::format("has {} at {}, which is not a whole number {}below {}", value.dump(),
                              numbers.size(), low, allowed.high),
                  allowed.remedy);
    }
    numbers.push_back(number);
  }
  return numbers;
}

ConfigError JsonLine::wrong(std::string_view key, std::string_view what,
                            const std::string& remedy) const {
  return {fmt::format("{}: key \"{}\" {}", place_, key, what), remedy};
}

}  // namespace terrace
