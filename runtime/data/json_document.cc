#include "runtime/data/json_document.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json_depth.h"

namespace terrace {
namespace {

using nlohmann::json;

constexpr const char* kForms =
    "give each line \"text\", or \"prompt\" and \"completion\", or \"input_ids\" with an optional "
    "\"loss_mask\"";
constexpr const char* kPrepare =
    "convert it to lines with ids and masks: python -m terrace.data prepare "
    "(docs/conversations.md)";

// One line's object, and where it stands.
struct Line {
  const json& object;
  const std::string& place;

  bool has(const char* key) const { return object.contains(key); }
  ConfigError wrong(const char* key, std::string_view what, const std::string& remedy) const {
    return {fmt::format("{}: key \"{}\" {}", place, key, what), remedy};
  }
};

void check_forms(const Line& line) {
  if (line.has("messages") || line.has("conversations")) {
    const char* const key = line.has("messages") ? "messages" : "conversations";
    throw line.wrong(key, "is a conversation, but chat templates are not applied here", kPrepare);
  }
  const bool has_text = line.has("text");
  const bool has_prompt = line.has("prompt") || line.has("completion");
  const bool has_ids = line.has("input_ids");
  const int forms = int{has_text} + int{has_prompt} + int{has_ids};
  if (forms == 0) {
    throw ConfigError(
        fmt::format("{}: has neither \"text\" nor \"prompt\" nor \"input_ids\"", line.place),
        kForms);
  }
  if (forms > 1) {
    throw ConfigError(
        fmt::format("{}: has more than one of \"text\", \"prompt\" and \"input_ids\"", line.place),
        kForms);
  }
  for (const char* const key : {"prompt", "completion"}) {
    if (has_prompt && !line.has(key)) throw line.wrong(key, "is missing", kForms);
  }
  if (line.has("labels") && has_ids && !line.has("loss_mask")) {
    throw line.wrong("labels", "is not read, so all of \"input_ids\" would be trained on",
                     "give \"loss_mask\" instead: 0 where labels is -100, 1 elsewhere");
  }
  if (line.has("loss_mask") && !has_ids) {
    throw line.wrong("loss_mask", "is only valid with \"input_ids\"",
                     "leave it out, or give the ids");
  }
}

std::string text_of(const Line& line, const char* key) {
  const json& value = line.object.at(key);
  if (value.is_array()) throw line.wrong(key, "is a list, not a text", kPrepare);
  if (!value.is_string()) {
    throw line.wrong(key, fmt::format("is a {}, not a text", value.type_name()), kForms);
  }
  return value.get<std::string>();
}

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

// Returns the whole numbers of a list, each in [0, limit). true and false count as 1 and 0 where
// `takes_bool`.
template <typename T>
std::vector<T> numbers_of(const Line& line, const char* key, std::int64_t limit, bool takes_bool) {
  const json& list = line.object.at(key);
  if (!list.is_array()) {
    throw line.wrong(key, fmt::format("is a {}, not a list", list.type_name()), kForms);
  }
  std::vector<T> numbers;
  numbers.reserve(list.size());
  for (const json& value : list) {
    std::int64_t number = -1;
    if (value.is_number_unsigned()) {
      constexpr std::uint64_t kMost = INT64_MAX;
      number = static_cast<std::int64_t>(std::min(value.get<std::uint64_t>(), kMost));
    } else if (takes_bool && value.is_boolean()) {
      number = value.get<bool>() ? 1 : 0;
    }
    if (number < 0 || number >= limit) {
      throw line.wrong(key,
                       fmt::format("has {} at {}, which is not a whole number below {}",
                                   value.dump(), numbers.size(), limit),
                       takes_bool ? "a mask consists of 0 and 1" : "use the model's own ids");
    }
    numbers.push_back(static_cast<T>(number));
  }
  return numbers;
}

}  // namespace

JsonDocument parse_json_document(std::string_view text, const std::string& place,
                                 std::int64_t vocabulary) {
  const json object = parse_line_object(text, place);
  const Line line{object, place};
  check_forms(line);
  JsonDocument document;
  if (line.has("input_ids")) {
    document.kind = JsonDocument::Kind::kIds;
    document.ids = numbers_of<std::int32_t>(line, "input_ids", vocabulary, false);
    if (!line.has("loss_mask")) return document;
    document.mask = numbers_of<std::uint8_t>(line, "loss_mask", 2, true);
    if (document.mask.size() == document.ids.size()) return document;
    throw line.wrong("loss_mask",
                     fmt::format("has {} numbers, but \"input_ids\" has {}", document.mask.size(),
                                 document.ids.size()),
                     "give one number for each id");
  }
  if (line.has("text")) {
    document.text = text_of(line, "text");
    return document;
  }
  document.kind = JsonDocument::Kind::kPrompt;
  document.prompt = text_of(line, "prompt");
  document.text = text_of(line, "completion");
  return document;
}

}  // namespace terrace
