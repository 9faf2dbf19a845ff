#include "runtime/tokenizer/json_node.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "runtime/tokenizer/tokenizer_file.h"

namespace terrace {
namespace {

using Json = nlohmann::json;

constexpr int kDepthMax = 32;
constexpr std::string_view kMakeJsonAgain = "make the file again, or fetch it again";

const Json& value_of(const void* value) { return *static_cast<const Json*>(value); }

Json parse_json(const std::string& text, const std::string& path) {
  const auto check_depth = [&](int depth, Json::parse_event_t, Json&) {
    if (depth > kDepthMax) {
      throw CorruptData(fmt::format("{}: values are nested deeper than {}", path, kDepthMax),
                        std::string(kMakeJsonAgain));
    }
    return true;
  };
  try {
    return Json::parse(text, check_depth);
  } catch (const Json::exception& error) {
    throw CorruptData(fmt::format("{}: not JSON: {}", path, error.what()),
                      std::string(kMakeJsonAgain));
  }
}

}  // namespace

bool JsonNode::is_null() const { return value_of(value_).is_null(); }
bool JsonNode::is_text() const { return value_of(value_).is_string(); }
bool JsonNode::is_array() const { return value_of(value_).is_array(); }
bool JsonNode::is_object() const { return value_of(value_).is_object(); }

std::string JsonNode::text() const {
  if (!is_text()) corrupt("not a text");
  return value_of(value_).get<std::string>();
}

std::int64_t JsonNode::integer() const {
  const Json& value = value_of(value_);
  if (!value.is_number_integer()) corrupt("not a whole number");
  if (value.is_number_unsigned() && value.get<std::uint64_t>() > INT64_MAX) corrupt("too large");
  return value.get<std::int64_t>();
}

bool JsonNode::names(std::string_view key) const {
  return is_object() && value_of(value_).contains(key);
}

bool JsonNode::has(std::string_view key) const { return names(key) && !child(key).is_null(); }

JsonNode JsonNode::child(std::string_view key) const {
  if (!is_object()) corrupt("not an object");
  const auto found = value_of(value_).find(key);
  if (found == value_of(value_).end()) corrupt(fmt::format("has no \"{}\"", key));
  return {&*found, fmt::format("{}: {}", where_, key)};
}

bool JsonNode::flag(std::string_view key, bool otherwise) const {
  if (!has(key)) return otherwise;
  const JsonNode node = child(key);
  if (!value_of(node.value_).is_boolean()) node.corrupt("neither true nor false");
  return value_of(node.value_).get<bool>();
}

void JsonNode::for_each_entry(FunctionRef<void(const std::string&, const JsonNode&)> take) const {
  if (!is_object()) corrupt("not an object");
  for (const auto& [key, value] : value_of(value_).items()) take(key, {&value, where_});
}

std::size_t JsonNode::size() const {
  if (!is_array()) corrupt("not a list");
  return value_of(value_).size();
}

JsonNode JsonNode::item(std::size_t index) const {
  if (index >= size()) corrupt(fmt::format("has {} values, but {} are needed", size(), index));
  return {&value_of(value_)[index], where_};
}

void JsonNode::for_each_item(FunctionRef<void(const JsonNode&)> take) const {
  if (!is_array()) corrupt("not a list");
  for (const Json& value : value_of(value_)) take({&value, where_});
}

void JsonNode::check_keys(std::initializer_list<std::string_view> known) const {
  if (!is_object()) corrupt("not an object");
  for (const auto& [key, value] : value_of(value_).items()) {
    if (std::find(known.begin(), known.end(), key) != known.end()) continue;
    refuse(fmt::format("\"{}\" is not a key that Terrace knows", key));
  }
}

void JsonNode::refuse(std::string_view what) const {
  throw ConfigError(fmt::format("{}: {}", where_, what),
                    "docs/tokenizers.md lists what is supported; convert text to token files with "
                    "the tokenizer's own library");
}

void JsonNode::corrupt(std::string_view what) const {
  throw CorruptData(fmt::format("{}: {}", where_, what), std::string(kMakeJsonAgain));
}

struct JsonFile::Content {
  Json json;
};

JsonFile::JsonFile(const std::string& path)
    : content_(std::make_unique<Content>(parse_json(read_tokenizer_file(path), path))),
      path_(path) {}

JsonFile::~JsonFile() = default;

JsonNode JsonFile::root() const { return {&content_->json, path_}; }

}  // namespace terrace
