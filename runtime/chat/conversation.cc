#include "runtime/chat/conversation.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string_view>
#include <utility>

#include "runtime/chat/conversation_forms.h"
#include "runtime/chat/conversation_turns.h"
#include "runtime/chat/row_keys.h"
#include "runtime/chat/training_marks.h"

namespace terrace {
namespace {

using jinja::Mapping;
using jinja::Value;
using std::string_view_literals::operator""sv;
using Turns = std::vector<Turn>;

constexpr const char* kAListOfTools = "give a list of tools, or the JSON text of one";

// Refuses what is not built, and what would say without effect what is trained on.
void check_row(const Mapping& row, const std::string& place) {
  constexpr const char* kPreferences = "is for training on preferences, which is not built";
  for (const std::string_view key : {"chosen", "rejected"}) {
    if (!row.contains(key)) continue;
    throw wrong_key(place, key, kPreferences, "give the conversations to train on as \"messages\"");
  }
  const Value* const label = row.find("label"sv);
  if (label != nullptr && label->is_bool()) {
    throw wrong_key(place, "label", kPreferences,
                    "keep the good conversations, and remove the key");
  }
  for (const std::string_view key : {"image", "images", "video", "videos", "audio", "audios"}) {
    const Value* const value = row.find(key);
    if (value == nullptr || !value->is_true()) continue;
    throw wrong_key(place, key, "is not read: models are trained on texts only",
                    "leave the row out, or remove the key");
  }
  check_row_marks(row, place);
}

// Returns whether a prompt repeats the first question, or the first messages.
bool begins_with(const Turns& turns, const Value& prompt, const std::string& place) {
  if (prompt.is_text()) {
    const auto question =
        std::ranges::find_if(turns, [](const Turn& turn) { return turn.has_role("user"); });
    if (question == turns.end()) return false;
    const Value* const content = question->message.find("content"sv);
    return content != nullptr && *content == prompt;
  }
  if (!prompt.is_list() || prompt.items().empty()) return false;
  const Turns first = turns_of_list(prompt, "prompt", place);
  const auto same = [](const Turn& a, const Turn& b) {
    return Value(a.message) == Value(b.message);
  };
  return std::ranges::mismatch(first, turns, same).in1 == first.end();
}

// Refuses keys of other forms that would be passed over.
void check_other_forms(const Mapping& row, const ConversationForm& form, const std::string& place) {
  for (const std::string_view key : {"prompt", "completion", "history", "input_ids"}) {
    const Value* const value = row.find(key);
    if (value == nullptr || std::ranges::find(form.keys, key) != form.keys.end()) continue;
    const bool is_prompt = key == "prompt";
    if (is_prompt && begins_with(form.turns, *value, place)) continue;
    throw wrong_key(place, key,
                    is_prompt ? "differs from the beginning of the conversation"
                              : "is not read beside the conversation",
                    "remove the key, or the conversation");
  }
  const Value* const context = row.find("context"sv);
  if (!has_message_list(row) && context != nullptr && context->is_true()) {
    throw wrong_key(place, "context", "is not read beside a question",
                    "put its text into the question, or remove the key");
  }
}

// Returns the system text beside a conversation, with its key.
std::optional<std::pair<std::string_view, std::string>> system_beside(const Mapping& row,
                                                                      const std::string& place) {
  std::optional<std::pair<std::string_view, std::string>> given;
  for (const std::string_view key : {"system", "system_prompt"}) {
    const Value* const text = row.find(key);
    if (text == nullptr || *text == text_value("")) continue;
    if (!text->is_text()) {
      throw wrong_key(place, key, fmt::format("is {}, not a text", kind_of_value(*text)),
                      "give the text");
    }
    if (!given) given.emplace(key, text->text());
    if (given->second != text->text()) {
      throw wrong_key(place, key, fmt::format("differs from \"{}\"", given->first),
                      "keep one of the two");
    }
  }
  return given;
}

// Puts the system text beside a conversation in front of it, unless it is in there already. Returns
// whether it did.
bool add_system(Turns& turns, const Mapping& row, const std::string& place) {
  const auto given = system_beside(row, place);
  if (!given) return false;
  const Value text = text_value(given->second);
  bool is_there = false;
  for (const Turn& turn : turns) {
    if (!turn.has_role("system")) continue;
    is_there = true;
    const Value* const content = turn.message.find("content"sv);
    if (content != nullptr && *content == text) continue;
    throw wrong_key(place, given->first,
                    fmt::format("differs from the system message \"{}\"", turn.path),
                    "keep one of the two");
  }
  if (is_there) return false;
  Mapping message;
  message.set("role"sv, text_value("system"));
  message.set("content"sv, text);
  turns.insert(turns.begin(), {std::move(message), std::string(given->first)});
  return true;
}

// Returns a tool in the form that templates read. A bare function is put into an object.
Value wrapped_tool(const Value& tool, const std::string& path, const std::string& place) {
  if (!tool.is_mapping()) {
    throw wrong_key(place, path, fmt::format("is {}, not an object", kind_of_value(tool)),
                    kAListOfTools);
  }
  const Mapping& keys = tool.mapping();
  const Value* const name = keys.find("name"sv);
  if (name == nullptr || !name->is_text() || keys.contains("function") || keys.contains("type")) {
    return tool;
  }
  Mapping wrapped;
  wrapped.set("type"sv, text_value("function"));
  wrapped.set("function"sv, tool);
  return Value(std::move(wrapped));
}

// Returns the list of tools under a key, wrapped; None if there are none.
Value tools_at(const Mapping& row, std::string_view key, const std::string& place) {
  const Value* const given = row.find(key);
  if (given == nullptr) return {};
  Value value = *given;
  if (given->is_text()) {
    if (without_space_around(given->text()).empty()) return {};
    value = value_of_json(given->text(), key, place, kAListOfTools);
  }
  if (value.is_none()) return {};
  if (!value.is_list()) {
    throw wrong_key(place, key, fmt::format("is {}, not a list", kind_of_value(value)),
                    kAListOfTools);
  }
  std::vector<Value> tools;
  for (const Value& tool : value.items()) {
    tools.push_back(wrapped_tool(tool, fmt::format("{}[{}]", key, tools.size()), place));
  }
  return tools.empty() ? Value() : Value::list(std::move(tools));
}

Value tools_of(const Mapping& row, const std::string& place) {
  const Value tools = tools_at(row, "tools", place);
  const Value functions = tools_at(row, "functions", place);
  if (functions.is_none()) return tools;
  if (tools.is_none()) return functions;
  throw wrong_key(place, "functions", "is not read beside \"tools\"", "keep one of the two");
}

Mapping variables_of(const Mapping& row, const std::string& place) {
  const Value* const variables = row.find("chat_template_kwargs"sv);
  if (variables == nullptr) return {};
  if (variables->is_mapping()) return variables->mapping();
  throw wrong_key(place, "chat_template_kwargs",
                  fmt::format("is {}, not an object", kind_of_value(*variables)),
                  "give the template's variables");
}

}  // namespace

bool is_conversation(const Mapping& given) {
  const Mapping row = without_nulls(given);
  if (has_message_list(row)) return true;
  if (row.contains("text") || row.contains("input_ids")) return false;
  const Value* const prompt = row.find("prompt"sv);
  const Value* const completion = row.find("completion"sv);
  if (completion != nullptr && prompt != nullptr) {
    return prompt->is_list() || completion->is_list();
  }
  return has_question(row) || (prompt != nullptr && prompt->is_list()) || row.contains("chosen") ||
         row.contains("rejected");
}

namespace {

// Returns the keys of the row that conversations are made of, each in quotation marks.
std::string keys_of(const Mapping& row) {
  std::string keys;
  for (const std::string_view key :
       {"messages", "conversations", "conversation", "instruction", "input", "output", "question",
        "answer", "query", "response", "prompt", "completion"}) {
    if (row.contains(key)) keys += fmt::format("{}\"{}\"", keys.empty() ? "" : ", ", key);
  }
  return keys;
}

}  // namespace

Conversation read_conversation(const Mapping& given, const std::string& place) {
  const Mapping row = without_nulls(given);
  check_row(row, place);
  ConversationForm form = form_of_row(row, place);
  check_other_forms(row, form, place);
  Conversation conversation;
  conversation.trained = take_training_marks(form.turns, form.context, place);
  if (add_system(form.turns, row, place)) {
    conversation.trained.insert(conversation.trained.begin(), false);
  }
  conversation.variables = variables_of(row, place);
  conversation.tools = tools_of(row, place);
  conversation.thoughts = thoughts_of(form.turns, place);
  conversation.keys = keys_of(row);
  for (Turn& turn : form.turns) conversation.messages.emplace_back(std::move(turn.message));
  return conversation;
}

}  // namespace terrace
