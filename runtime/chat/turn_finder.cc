#include "runtime/chat/turn_finder.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "runtime/chat/row_keys.h"
#include "runtime/chat/shown.h"
#include "runtime/jinja/python_text.h"

namespace terrace {
namespace {

using jinja::Value;

// The words in place of contents; no conversation has them. They begin and end with private code
// points.
constexpr std::string_view kWord = "\xEE\x80\x80terrace-turn\xEE\x80\x81";
constexpr std::string_view kWordBefore = "\xEE\x80\x80terrace-before\xEE\x80\x81";
constexpr const char* kMarkTurns =
    "put {% generation %} and {% endgeneration %} around what the assistant says in the template, "
    "and name the file with --chat-template";

Value with_key(const Value& mapping, std::string_view key, Value value) {
  jinja::Mapping changed = mapping.mapping();
  changed.set(key, std::move(value));
  return Value(std::move(changed));
}

// Returns the message with a word as its content, which stays a list if it is one.
Value with_content(const Value& message, std::string_view word) {
  const Value* const content = message.mapping().find("content");
  if (content == nullptr || !content->is_list()) {
    return with_key(message, "content", text_value(word));
  }
  jinja::Mapping part;
  part.set("type", text_value("text"));
  part.set("text", text_value(word));
  return with_key(message, "content", Value::list(std::vector<Value>{Value(std::move(part))}));
}

bool has_calls(const Value& message) { return message.mapping().contains("tool_calls"); }

// Returns the message with a word in place of a part: its content, its last call's name or id.
std::vector<Value> with_part(const Value& message, std::string_view word) {
  std::vector<Value> changed = {with_content(message, word)};
  const Value* const calls = message.mapping().find("tool_calls");
  if (calls == nullptr || !calls->is_list() || calls->items().empty()) return changed;
  const Value& call = calls->items().back();
  if (!call.is_mapping()) return changed;
  const Value* const function = call.mapping().find("function");
  const Value named =
      function != nullptr && function->is_mapping()
          ? with_key(call, "function", with_key(*function, "name", text_value(word)))
          : with_key(call, "name", text_value(word));
  for (const Value& other : {named, with_key(call, "id", text_value(word))}) {
    std::vector<Value> items = calls->items();
    items.back() = other;
    changed.push_back(with_key(message, "tool_calls", Value::list(std::move(items))));
  }
  return changed;
}

ConfigError not_found(const std::string& place, std::size_t index, const std::string& why) {
  return {fmt::format("{}: message {}: {}", place, index, why), kMarkTurns};
}

}  // namespace

TurnFinder::TurnFinder(Parts parts) : parts_(std::move(parts)) {
  std::ranges::stable_sort(parts_.ends, std::greater<>(), &std::string::size);
}

TextSpan TurnFinder::find(std::size_t index, const std::string& place) const {
  const std::optional<std::size_t> begin = find_begin(index);
  if (!begin) {
    throw not_found(place, index,
                    "its turn is not found, because the text before it differs where the template "
                    "renders it as a prompt");
  }
  const std::optional<std::size_t> end = find_end(index, *begin);
  if (!end) {
    throw not_found(place, index,
                    "the end of its turn is not found, because the template renders it differently "
                    "where messages follow");
  }
  const std::string missing =
      missing_part(parts_.messages[index].mapping(),
                   std::string_view(parts_.text).substr(*begin, *end - *begin));
  if (!missing.empty()) {
    throw not_found(place, index,
                    fmt::format("the turn that is found for it does not show {}", missing));
  }
  return {*begin, without_space_behind(*begin, *end)};
}

TurnFinder::Messages TurnFinder::messages_before(std::size_t index) const {
  return {parts_.messages.begin(), parts_.messages.begin() + static_cast<std::ptrdiff_t>(index)};
}

// Returns messages, a turn in place of the message at `index`, and what follows that if asked to.
TurnFinder::Messages TurnFinder::joined(const Messages& before, const Value& turn, bool has_later,
                                        std::size_t index) const {
  Messages all = before;
  all.push_back(turn);
  if (has_later) {
    all.insert(all.end(), parts_.messages.begin() + static_cast<std::ptrdiff_t>(index) + 1,
               parts_.messages.end());
  }
  return all;
}

std::optional<std::size_t> TurnFinder::find_begin(std::size_t index) const {
  const std::string& text = parts_.text;
  const Messages before = messages_before(index);
  const std::optional<std::string> prompt = variation(before, true);
  if (prompt && text.starts_with(*prompt)) return prompt->size();
  if (index == 0) return std::nullopt;
  Messages worded = before;
  worded.back() = with_content(before.back(), kWordBefore);
  const std::optional<Around> header = around(kWordBefore, worded, true);
  if (!header) return std::nullopt;
  for (const Value& turn : with_part(parts_.messages[index], kWord)) {
    const std::optional<Around> whole = around(kWord, joined(before, turn, true, index), false);
    const std::optional<Around> both = around(kWord, joined(worded, turn, true, index), false);
    if (!whole || !both || !text.starts_with(whole->before)) continue;
    const std::size_t word = both->before.rfind(kWordBefore);
    if (word == std::string::npos) continue;
    const std::string gap = both->before.substr(word + kWordBefore.size());
    if (!whole->before.ends_with(gap)) continue;
    const std::size_t end_of_gap = whole->before.size();
    if (gap.starts_with(header->behind)) return end_of_gap - gap.size() + header->behind.size();
    if (header->behind.starts_with(gap)) return end_of_gap;
  }
  return std::nullopt;
}

std::optional<std::size_t> TurnFinder::find_end(std::size_t index, std::size_t begin) const {
  const std::string& text = parts_.text;
  const Messages before = messages_before(index);
  const Value& message = parts_.messages[index];
  const bool has_later = index + 1 < parts_.messages.size();
  if (has_later) {
    const auto through = variation(joined(before, message, false, index), false);
    if (through && text.starts_with(*through) && through->size() >= begin) return through->size();
  } else if (variation(parts_.messages, true).value_or("").starts_with(text)) {
    return text.size();
  }
  for (const Value& turn : with_part(message, kWord)) {
    const std::optional<Around> last = around(kWord, joined(before, turn, false, index), false);
    const std::optional<Around> whole = around(kWord, joined(before, turn, true, index), false);
    const std::optional<Around> follows =
        around(kWord, joined(before, turn, true, index), !has_later);
    if (!last || !whole || !follows || !text.ends_with(whole->behind)) continue;
    const std::optional<std::size_t> size =
        size_of_end(last->behind, follows->behind, has_calls(turn));
    const std::size_t end_of_word = text.size() - whole->behind.size();
    if (size && end_of_word >= begin) return end_of_word + *size;
  }
  return has_later ? std::nullopt : std::optional(text.size());
}

// Returns the size of the end of a turn: as the last one, and with text that follows. A token that
// only the last turn has does not count. In front of it there must be an end that both have; calls
// of tools could be taken for one.
std::optional<std::size_t> TurnFinder::size_of_end(const std::string& last,
                                                   const std::string& follows,
                                                   bool has_calls) const {
  if (follows.starts_with(last)) return last.size();
  if (has_calls) return std::nullopt;
  for (const std::string& token : parts_.ends) {
    if (token.empty() || !last.ends_with(token)) continue;
    const std::string end = last.substr(0, last.size() - token.size());
    if (!jinja::strip_end(end).empty() && follows.starts_with(end)) return end.size();
  }
  return std::nullopt;
}

// Returns the text of messages that are not in the data; nothing where the template refuses them.
std::optional<std::string> TurnFinder::variation(const Messages& messages, bool is_prompt) const {
  try {
    return parts_.render(messages, is_prompt);
  } catch (const ConfigError&) {
    return std::nullopt;
  }
}

// Returns the text before and behind the word; nothing unless it is rendered once.
std::optional<TurnFinder::Around> TurnFinder::around(std::string_view word,
                                                     const Messages& messages,
                                                     bool is_prompt) const {
  const std::optional<std::string> text = variation(messages, is_prompt);
  if (!text) return std::nullopt;
  const std::size_t found = text->find(word);
  if (found == std::string::npos) return std::nullopt;
  const std::size_t behind = found + word.size();
  if (text->find(word, behind) != std::string::npos) return std::nullopt;
  return Around{text->substr(0, found), text->substr(behind)};
}

std::size_t TurnFinder::without_space_behind(std::size_t begin, std::size_t end) const {
  const std::string_view turn = std::string_view(parts_.text).substr(begin, end - begin);
  const std::string_view stripped = jinja::strip_end(turn);
  const bool ends_with_token = std::ranges::any_of(
      parts_.ends, [&](const std::string& token) { return stripped.ends_with(token); });
  return ends_with_token ? begin + stripped.size() : end;
}

std::vector<TextSpan> parts_within(const std::vector<TextSpan>& spans,
                                   const std::vector<TextSpan>& limits) {
  std::vector<TextSpan> parts;
  std::size_t limit = 0;
  for (const TextSpan& span : spans) {
    while (limit < limits.size() && limits[limit].end <= span.begin) ++limit;
    for (std::size_t i = limit; i < limits.size() && limits[i].begin < span.end; ++i) {
      const TextSpan part = {std::max(span.begin, limits[i].begin),
                             std::min(span.end, limits[i].end)};
      if (!part.is_empty()) parts.push_back(part);
    }
  }
  return parts;
}

}  // namespace terrace
