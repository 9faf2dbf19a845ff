#include "runtime/chat/conversation_forms.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <span>
#include <utility>

#include "base/error.h"
#include "runtime/chat/row_keys.h"

namespace terrace {
namespace {

using jinja::Mapping;
using jinja::Value;
using std::string_view_literals::operator""sv;
using Names = std::vector<std::string_view>;

constexpr auto kLists =
    std::to_array<std::string_view>({"messages", "conversations", "conversation"});
constexpr auto kQuestions =
    std::to_array<std::string_view>({"question", "query", "prompt", "input"});
constexpr auto kAnswers =
    std::to_array<std::string_view>({"answer", "response", "output", "completion"});
constexpr auto kPairs = std::to_array<std::pair<std::string_view, std::string_view>>({
    {"question", "answer"},
    {"question", "response"},
    {"query", "response"},
    {"prompt", "response"},
    {"input", "output"},
});

// Returns the keys that the row has.
Names keys_in(std::span<const std::string_view> keys, const Mapping& row) {
  Names found;
  std::ranges::copy_if(keys, std::back_inserter(found),
                       [&](std::string_view key) { return row.contains(key); });
  return found;
}

std::string quoted(std::span<const std::string_view> keys) {
  return keys.empty() ? "" : fmt::format("\"{}\"", fmt::join(keys, "\", \""));
}

void add_turn(std::vector<Turn>& turns, const char* role, const std::string& content,
              std::string path) {
  Mapping message;
  message.set("role"sv, text_value(role));
  message.set("content"sv, text_value(content));
  turns.push_back({std::move(message), std::move(path)});
}

bool is_pair_of_texts(const Value& pair) {
  return pair.is_list() && pair.items().size() == 2 && pair.items()[0].is_text() &&
         pair.items()[1].is_text();
}

// Reads "history": a list of earlier questions, each with its answer.
std::vector<Turn> turns_of_history(const Mapping& row, const std::string& place) {
  std::vector<Turn> turns;
  const Value* const history = row.find("history"sv);
  if (history == nullptr) return turns;
  if (!history->is_list()) {
    throw wrong_key(place, "history", fmt::format("is {}, not a list", kind_of_value(*history)));
  }
  for (std::size_t i = 0; i < history->items().size(); ++i) {
    const Value& pair = history->items()[i];
    const std::string path = fmt::format("history[{}]", i);
    if (!is_pair_of_texts(pair)) {
      throw wrong_key(place, path, "is not a list of two texts",
                      "give each question with its answer: [question, answer]");
    }
    add_turn(turns, "user", pair.items()[0].text(), path + "[0]");
    add_turn(turns, "assistant", pair.items()[1].text(), path + "[1]");
  }
  return turns;
}

// Reads Alpaca's form, and joins instruction and input as LLaMA-Factory does.
ConversationForm alpaca_form(const Mapping& row, const std::string& place) {
  std::string question = text_at(row, "instruction", place);
  if (row.contains("input")) {
    const std::string& input = text_at(row, "input", place);
    if (!question.empty() && !input.empty()) question += "\n";
    question += input;
  }
  ConversationForm form{turns_of_history(row, place), {"history"}};
  add_turn(form.turns, "user", question, "instruction");
  add_turn(form.turns, "assistant", text_at(row, "output", place), "output");
  return form;
}

ConversationForm pair_form(const Mapping& row, std::string_view question, std::string_view answer,
                           const std::string& place) {
  ConversationForm form{turns_of_history(row, place), {"history", question}};
  add_turn(form.turns, "user", text_at(row, question, place), std::string(question));
  add_turn(form.turns, "assistant", text_at(row, answer, place), std::string(answer));
  return form;
}

// Reads "prompt" and "completion", two lists of messages.
ConversationForm completion_form(const Mapping& row, const std::string& place) {
  ConversationForm form{turns_of_list(*row.find("prompt"sv), "prompt", place),
                        {"prompt", "completion"}};
  form.context = form.turns.size();
  const Value* const completion = row.find("completion"sv);
  if (completion == nullptr) throw wrong_key(place, "completion", "is missing");
  std::ranges::move(turns_of_list(*completion, "completion", place),
                    std::back_inserter(form.turns));
  return form;
}

[[noreturn]] void refuse_row(const Mapping& row, const std::string& place) {
  constexpr std::size_t kMostNamed = 8;
  Names some;
  for (const auto& [key, value] : row.entries()) {
    if (some.size() < kMostNamed) some.push_back(key.text());
  }
  throw ConfigError(fmt::format("{}: has no form of a conversation: it has {}", place,
                                some.empty() ? "no keys" : quoted(some)),
                    kConversationForms);
}

}  // namespace

bool has_message_list(const Mapping& row) { return !keys_in(kLists, row).empty(); }

bool has_question(const Mapping& row) {
  return row.contains("instruction") ||
         (!keys_in(kQuestions, row).empty() && !keys_in(kAnswers, row).empty());
}

ConversationForm form_of_row(const Mapping& row, const std::string& place) {
  const Names lists = keys_in(kLists, row);
  if (lists.size() > 1) {
    throw ConfigError(fmt::format("{}: has more than one of {}", place, quoted(kLists)),
                      "keep one of them");
  }
  if (!lists.empty()) {
    return {turns_of_list(*row.find(lists.front()), std::string(lists.front()), place), {}};
  }
  if (row.contains("instruction")) return alpaca_form(row, place);
  const Names questions = keys_in(kQuestions, row);
  const Names answers = keys_in(kAnswers, row);
  if (questions == Names{"prompt"} && (answers.empty() || answers == Names{"completion"})) {
    return completion_form(row, place);
  }
  if (questions.empty() || answers.empty()) refuse_row(row, place);
  const std::pair pair{questions.front(), answers.front()};
  if (questions.size() > 1 || answers.size() > 1 ||
      std::ranges::find(kPairs, pair) == kPairs.end()) {
    Names both = questions;
    std::ranges::copy(answers, std::back_inserter(both));
    throw ConfigError(fmt::format("{}: has {}, which are not the names of one question and its "
                                  "answer",
                                  place, quoted(both)),
                      kConversationForms);
  }
  return pair_form(row, pair.first, pair.second, place);
}

}  // namespace terrace
