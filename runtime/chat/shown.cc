#include "runtime/chat/shown.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "runtime/chat/row_keys.h"

namespace terrace {
namespace {

using jinja::Mapping;
using jinja::Value;
using std::string_view_literals::operator""sv;

constexpr const char* kOtherTemplate = "name a template that shows it with --chat-template";

// A rendered conversation.
struct Rendered {
  std::string_view text;
  const std::string& place;

  // Takes time that is linear in the sizes of both texts, which std::string_view::find() does not.
  bool has(std::string_view part) const {
    return part.empty() || memmem(text.data(), text.size(), part.data(), part.size()) != nullptr;
  }
  ConfigError lacks(std::size_t message, const std::string& what, const std::string& remedy) const {
    return {fmt::format("{}: message {}: the chat template does not show {}", place, message, what),
            remedy};
  }
};

// Returns a text of a mapping; "" if there is none.
std::string_view text_in(const Mapping& mapping, std::string_view key) {
  const Value* const value = mapping.find(key);
  return value != nullptr && value->is_text() ? std::string_view(value->text())
                                              : std::string_view();
}

// Returns the name of the function of a tool or of a call; "" if there is none.
std::string_view name_of_function(const Mapping& tool) {
  const Value* const function = tool.find("function"sv);
  const bool is_wrapped = function != nullptr && function->is_mapping();
  return text_in(is_wrapped ? function->mapping() : tool, "name");
}

// Returns the size of a switch that some models' templates take out of a system message, if the
// text begins with one, or else 0.
std::size_t size_of_switch(std::string_view text) {
  for (const std::string_view word : {"/no_think"sv, "/think"sv}) {
    if (text.starts_with(word)) return word.size();
  }
  return 0;
}

// Returns whether the text has all of a system message but its switches.
bool shows_system(std::string_view content, const Rendered& rendered) {
  std::size_t begin = 0;
  for (std::size_t at = content.find('/'); at != std::string_view::npos;
       at = content.find('/', at + 1)) {
    const std::size_t size = size_of_switch(content.substr(at));
    if (size == 0) continue;
    if (!rendered.has(without_space_around(content.substr(begin, at - begin)))) return false;
    begin = at + size;
  }
  return rendered.has(without_space_around(content.substr(begin)));
}

void check_messages(const Conversation& conversation, std::span<const std::size_t> turns,
                    const Rendered& rendered) {
  for (std::size_t i = 0; i < conversation.messages.size(); ++i) {
    const Mapping& message = conversation.messages[i].mapping();
    if (text_in(message, "role") != "system" ||
        shows_system(text_in(message, "content"), rendered)) {
      continue;
    }
    throw rendered.lacks(
        i, "the system message",
        fmt::format("put its text into the first question, or {}", kOtherTemplate));
  }
  for (const std::size_t i : turns) {
    const std::string missing = missing_part(conversation.messages[i].mapping(), rendered.text);
    if (!missing.empty()) throw rendered.lacks(i, missing, kOtherTemplate);
  }
}

}  // namespace

std::string missing_part(const Mapping& message, std::string_view text) {
  const auto has = [&](std::string_view part) { return text.find(part) != std::string_view::npos; };
  if (!has(answer_in_content(message))) return "its content as it is";
  const Value* const calls = message.find("tool_calls"sv);
  if (calls == nullptr || !calls->is_list()) return "";
  for (const Value& call : calls->items()) {
    if (!call.is_mapping()) continue;
    const std::string_view name = name_of_function(call.mapping());
    const std::string_view id = text_in(call.mapping(), "id");  // Kimi-K2 shows the id alone
    if (has(name) || (!id.empty() && has(id))) continue;
    return fmt::format("its call of \"{}\"", name);
  }
  return "";
}

void check_shown(const Conversation& conversation, std::span<const std::size_t> turns,
                 std::string_view text, const std::string& place) {
  const Rendered rendered{text, place};
  check_messages(conversation, turns, rendered);
  for (const Thought& thought : conversation.thoughts) {
    const bool is_trained = std::ranges::find(turns, thought.message) != turns.end();
    if (!is_trained || rendered.has(thought.text)) continue;
    throw rendered.lacks(
        thought.message, fmt::format("the thought in \"{}\"", thought.key),
        fmt::format("leave the thought out, give the message \"train\": false, or {}",
                    kOtherTemplate));
  }
  if (conversation.tools.is_none()) return;
  for (const Value& tool : conversation.tools.items()) {
    const std::string_view name = name_of_function(tool.mapping());
    if (rendered.has(name)) continue;
    throw ConfigError(
        fmt::format("{}: the chat template does not show the tool \"{}\"", place, name),
        fmt::format("leave the tools out, or {}", kOtherTemplate));
  }
}

}  // namespace terrace
