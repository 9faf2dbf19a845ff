#include "runtime/chat/thoughts.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>

#include "runtime/chat/row_keys.h"

namespace terrace {
namespace {

using jinja::Mapping;
using jinja::Value;
using std::string_view_literals::operator""sv;

// The keys for a thought, the one that most templates read first.
constexpr auto kThoughts =
    std::to_array<std::string_view>({"reasoning_content", "reasoning", "thinking"});
constexpr std::string_view kBegin = "<think>";
constexpr std::string_view kEnd = "</think>";

// Returns the thought at the front of a text, up to </think>, without the tags; or "".
std::string_view thought_in_content(std::string_view content) {
  const std::size_t end = content.find(kEnd);
  if (end == std::string_view::npos) return {};
  const std::string_view before = content.substr(0, end);
  const std::size_t begin = before.rfind(kBegin);
  return without_space_around(
      begin == std::string_view::npos ? before : before.substr(begin + kBegin.size()));
}

bool is_in_name(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

// Returns whether a template reads the key of a message, as in message.KEY or ['KEY'].
bool reads_key(std::string_view text, std::string_view key) {
  for (std::size_t at = text.find(key, 1); at != std::string_view::npos;
       at = text.find(key, at + 1)) {
    const char before = text[at - 1];
    const std::size_t behind = at + key.size();
    if ((before == '.' || before == '\'' || before == '"') &&
        (behind == text.size() || !is_in_name(text[behind]))) {
      return true;
    }
  }
  return false;
}

}  // namespace

std::vector<Thought> thoughts_of(const std::vector<Turn>& turns, const std::string& place) {
  std::vector<Thought> thoughts;
  for (std::size_t i = 0; i < turns.size(); ++i) {
    const auto& [message, path] = turns[i];
    if (!turns[i].has_role("assistant")) continue;
    for (const std::string_view key : kThoughts) {
      const Value* const value = message.find(key);
      if (value == nullptr) continue;
      if (!value->is_text()) {
        throw wrong_key(place, fmt::format("{}.{}", path, key),
                        fmt::format("is {}, not a text", kind_of_value(*value)));
      }
      const std::string_view text = without_space_around(value->text());
      if (!text.empty()) thoughts.push_back({i, std::string(key), std::string(text)});
    }
    const Value* const content = message.find("content"sv);
    if (content == nullptr || !content->is_text()) continue;
    const std::string_view text = thought_in_content(content->text());
    if (!text.empty()) thoughts.push_back({i, "content", std::string(text)});
  }
  return thoughts;
}

std::string_view answer_in_content(const Mapping& message) {
  const Value* const content = message.find("content"sv);
  if (content == nullptr || !content->is_text()) return {};
  const std::string_view text = content->text();
  const std::size_t end = text.rfind(kEnd);
  return without_space_around(end == std::string_view::npos ? text
                                                            : text.substr(end + kEnd.size()));
}

std::vector<Value> with_thoughts_named(const std::vector<Value>& messages,
                                       std::string_view template_text) {
  const auto is_read = [&](std::string_view key) { return reads_key(template_text, key); };
  const auto read = std::ranges::find_if(kThoughts, is_read);
  if (read == kThoughts.end()) return messages;
  std::vector<Value> named;
  for (const Value& value : messages) {
    named.push_back(value);
    Mapping message = value.mapping();
    std::vector<std::string_view> keys;
    std::ranges::copy_if(kThoughts, std::back_inserter(keys),
                         [&](std::string_view key) { return message.contains(key); });
    if (message.find("role"sv)->text() != "assistant" || keys.size() != 1 || is_read(keys[0])) {
      continue;
    }
    message.set(*read, Value(*message.find(keys[0])));
    named.back() = Value(std::move(message));
  }
  return named;
}

}  // namespace terrace
