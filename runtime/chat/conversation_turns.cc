#include "runtime/chat/conversation_turns.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstddef>
#include <string_view>
#include <utility>

#include "base/nearest_name.h"
#include "runtime/chat/row_keys.h"

namespace terrace {
namespace {

using jinja::Mapping;
using jinja::Value;
using std::string_view_literals::operator""sv;

constexpr const char* kACall =
    "give {\"name\": ..., \"arguments\": ...}, a list of such objects, or the JSON text of either";

// ShareGPT's names of the speakers. A "call" is the assistant's message that calls functions.
constexpr auto kRolesOfFrom = std::to_array<std::pair<std::string_view, std::string_view>>({
    {"human", "user"},
    {"user", "user"},
    {"gpt", "assistant"},
    {"assistant", "assistant"},
    {"model", "assistant"},
    {"chatgpt", "assistant"},
    {"bot", "assistant"},
    {"system", "system"},
    {"function_call", "call"},
    {"observation", "tool"},
    {"tool", "tool"},
    {"tool_response", "tool"},
    {"function_response", "tool"},
});

// Roles that templates know. Others are taken as they are, because a template may have its own.
constexpr auto kRoles =
    std::to_array<std::string_view>({"system", "user", "assistant", "tool", "developer", "function",
                                     "ipython", "environment", "observation", "model"});

std::string lower_case(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return lower;
}

// Refuses a role that is a known one with an error in its spelling: a template would write it as it
// is, and answers would not be trained on.
void check_role(const std::string& role, const std::string& path, const std::string& place) {
  if (std::ranges::find(kRoles, role) != kRoles.end()) return;
  const std::string meant = nearest_name(lower_case(role), kRoles);
  const std::size_t errors = edit_distance(lower_case(role), meant);
  if (errors > (meant.size() < 6 ? 1U : 2U)) return;
  throw wrong_key(place, path + ".role", fmt::format("is \"{}\"", role),
                  fmt::format("did you mean \"{}\"?", meant));
}

void check_message(const Mapping& message, const std::string& path, const std::string& place) {
  const Value* const role = message.find("role"sv);
  if (role == nullptr || !role->is_text() || role->text().empty()) {
    throw wrong_key(place, path + ".role", role == nullptr ? "is missing" : "is not a role's name");
  }
  check_role(role->text(), path, place);
  const Value* const content = message.find("content"sv);
  if (content == nullptr) {
    for (const std::string_view other : {"tool_calls", "function_call"}) {
      const Value* const calls = message.find(other);
      if (calls != nullptr && calls->is_true()) return;
    }
    throw wrong_key(place, path + ".content", "is missing");
  }
  if (!content->is_text() && !content->is_list()) {
    throw wrong_key(place, path + ".content",
                    fmt::format("is {}, not a text", kind_of_value(*content)));
  }
}

bool is_call(const Value& call) {
  if (!call.is_mapping() || !call.mapping().contains("arguments")) return false;
  const Value* const name = call.mapping().find("name"sv);
  return name != nullptr && name->is_text();
}

// Returns the tool calls in the value of a ShareGPT turn "function_call".
Value calls_of(const Value& given, const std::string& path, const std::string& place) {
  const Value value = given.is_text() ? value_of_json(given.text(), path, place, kACall) : given;
  const std::vector<Value> functions = value.is_list() ? value.items() : std::vector{value};
  std::vector<Value> calls;
  for (const Value& function : functions) {
    if (!is_call(function)) throw wrong_key(place, path, "is not a call of a function", kACall);
    Mapping call;
    call.set("type"sv, text_value("function"));
    call.set("function"sv, function);
    calls.emplace_back(std::move(call));
  }
  if (calls.empty()) throw wrong_key(place, path, "has no call of a function", kACall);
  return Value::list(std::move(calls));
}

std::string_view role_of_from(const Value& from, const std::string& path,
                              const std::string& place) {
  std::string names;
  for (const auto& [name, role] : kRolesOfFrom) {
    if (from.is_text() && from.text() == name) return role;
    names += fmt::format("{}{}", names.empty() ? "" : ", ", name);
  }
  throw wrong_key(place, path + ".from",
                  fmt::format("is {}, which is none of {}", shown_value(from), names),
                  "use one of these names");
}

Mapping message_of_sharegpt(const Mapping& turn, const std::string& path,
                            const std::string& place) {
  const std::string_view role = role_of_from(*turn.find("from"sv), path, place);
  for (const std::string_view key : {"role", "content"}) {
    if (!turn.contains(key)) continue;
    throw wrong_key(place, fmt::format("{}.{}", path, key), "is not read beside \"from\"",
                    "give \"from\" and \"value\", or \"role\" and \"content\"");
  }
  const Value* const value = turn.find("value"sv);
  if (value == nullptr) throw wrong_key(place, path + ".value", "is missing");
  Mapping message;
  message.set("role"sv, text_value(role == "call" ? "assistant" : role));
  if (role == "call") {
    message.set("content"sv, text_value(""));
    message.set("tool_calls"sv, calls_of(*value, path + ".value", place));
  } else if (value->is_text() || value->is_list()) {
    message.set("content"sv, *value);
  } else {
    throw wrong_key(place, path + ".value",
                    fmt::format("is {}, not a text", kind_of_value(*value)));
  }
  Mapping named = turn;
  named.erase("from");
  named.erase("value");
  for (const auto& [key, item] : named.entries()) message.set(key, item);
  return message;
}

}  // namespace

bool Turn::has_role(const char* role) const { return message.find("role"sv)->text() == role; }

std::vector<Turn> turns_of_list(const Value& value, const std::string& key,
                                const std::string& place) {
  if (!value.is_list()) {
    throw wrong_key(place, key, fmt::format("is {}, not a list of messages", kind_of_value(value)));
  }
  if (value.items().empty()) throw wrong_key(place, key, "has no message");
  std::vector<Turn> turns;
  for (std::size_t i = 0; i < value.items().size(); ++i) {
    const Value& item = value.items()[i];
    const std::string path = fmt::format("{}[{}]", key, i);
    if (!item.is_mapping()) {
      throw wrong_key(place, path, fmt::format("is {}, not a message", kind_of_value(item)));
    }
    Mapping message = without_nulls(item.mapping());
    if (message.contains("from")) {
      message = message_of_sharegpt(message, path, place);
    } else {
      check_message(message, path, place);
    }
    turns.push_back({std::move(message), path});
  }
  return turns;
}

}  // namespace terrace
