#include "runtime/data/json_document.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "base/error.h"
#include "base/nearest_name.h"
#include "runtime/data/json_ids.h"
#include "runtime/data/json_line.h"
#include "runtime/jinja/json_value.h"

namespace terrace {
namespace {

// Returns a remedy for a line without any of the known keys: the key that one of its keys seems to
// be meant for, or all forms.
std::string remedy_for_keys(const std::vector<std::string>& keys) {
  constexpr auto kKnown = std::to_array<std::string_view>(
      {"messages", "conversations", "conversation", "text", "prompt", "completion", "input_ids",
       "instruction", "output", "question", "answer", "response"});
  for (const std::string& key : keys) {
    const std::string nearest = nearest_name(key, kKnown);
    if (4 * edit_distance(key, nearest) <= nearest.size()) {
      return fmt::format("did you mean \"{}\"?", nearest);
    }
  }
  return kJsonLineForms;
}

// Returns some of a line's keys in words.
std::string describe_keys(std::vector<std::string> keys) {
  constexpr std::size_t kShown = 5;
  const bool is_cut = keys.size() > kShown;
  keys.resize(std::min(keys.size(), kShown));
  return fmt::format("its keys are \"{}\"{}", fmt::join(keys, "\", \""), is_cut ? ", ..." : "");
}

void check_forms(const JsonLine& line) {
  const bool has_text = line.has("text");
  const bool has_prompt = line.has("prompt") || line.has("completion");
  const bool has_ids = line.has("input_ids");
  const int forms = int{has_text} + int{has_prompt} + int{has_ids};
  if (forms == 0) {
    const std::vector<std::string> keys = line.keys();
    throw ConfigError(
        fmt::format("{}: has neither \"messages\" nor \"text\" nor \"prompt\" nor \"input_ids\"{}",
                    line.place(), keys.empty() ? "" : "; " + describe_keys(keys)),
        remedy_for_keys(keys));
  }
  if (forms > 1) {
    throw ConfigError(fmt::format("{}: has more than one of \"text\", \"prompt\" and \"input_ids\"",
                                  line.place()),
                      kJsonLineForms);
  }
  for (const char* const key : {"prompt", "completion"}) {
    if (has_prompt && !line.has(key)) throw line.wrong(key, "is missing", kJsonLineForms);
  }
  if (line.has("loss_mask") && !has_ids) {
    throw line.wrong("loss_mask", "is only valid with \"input_ids\"",
                     "leave it out, or give the ids");
  }
}

// Returns whether a line has none of the forms that are read here.
bool may_be_conversation(const JsonLine& line) {
  for (const char* const key : {"messages", "conversations", "conversation"}) {
    if (line.has(key)) return true;
  }
  if (line.has("text") || line.has("input_ids")) return false;
  return !line.has_text("prompt") || !line.has("completion");
}

}  // namespace

JsonDocument parse_json_document(std::string_view text, const std::string& place,
                                 std::int64_t vocabulary) {
  const JsonLine line(text, place);
  JsonDocument document;
  if (may_be_conversation(line)) {
    const jinja::Value row = jinja::parse_json_value(text, place);
    if (is_conversation(row.mapping())) {
      document.kind = JsonDocument::Kind::kConversation;
      document.conversation = read_conversation(row.mapping(), place);
      return document;
    }
  }
  check_forms(line);
  if (line.has("input_ids")) return read_json_ids(line, vocabulary);
  if (line.has("text")) {
    document.text = line.text("text");
    return document;
  }
  document.kind = JsonDocument::Kind::kPrompt;
  document.prompt = line.text("prompt");
  document.text = line.text("completion");
  return document;
}

}  // namespace terrace
