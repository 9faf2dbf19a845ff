#include "tests/tidy/plain_english.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <string>
#include <vector>

namespace terrace::tidy {
namespace {

// Words in their order, with one space between each and the next. In a pattern, a word may be a
// choice ("is|are"), *s stands for any word that ends in s, * for any word in small letters, !
// before a word says that it must not stand there, ^ at the start that the sentence begins here. A
// pattern that ends with "." is for sentences that are no questions.
constexpr auto kPatterns = std::to_array<std::string_view>({
    "^Of !course",
    "^What .",
    "^Who|Whoever|Whose .",
    "so many|much !that",
    "those|that of the|a|an|its|their|all|each|every|*s",
    "but for",
    "is|are|was|as|than|of|by|with|from|in what",
    "to|may|can be had",
    "be|were it",
    "none that",
    "no one that",
    "one that nobody",
    "nobody reads|has|waits|looks",
    "^So does|do|is|are|has|have",
    "^Likewise",
    "as can be",
    "the|an|its own one|ones",
    "the|an own *",
});

struct Word {
  std::string_view text;
  bool follows_space = false;  // one space, and nothing else, stands before it
};

std::vector<Word> words_of(std::string_view sentence) {
  const auto is_letter = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '\'';
  };
  std::vector<Word> words;
  std::size_t last = 0;
  for (std::size_t at = 0; at < sentence.size();) {
    std::size_t end = at;
    while (end < sentence.size() && is_letter(sentence[end])) ++end;
    if (end == at) {
      ++at;
      continue;
    }
    const bool spaced = at == last + 1 && sentence[last] == ' ';
    words.push_back({sentence.substr(at, end - at), spaced});
    last = at = end;
  }
  return words;
}

bool is_one_of(std::string_view word, std::string_view choices) {
  while (!choices.empty()) {
    const std::size_t end = std::min(choices.find('|'), choices.size());
    const std::string_view choice = choices.substr(0, end);
    const bool is_small = std::islower(static_cast<unsigned char>(word.front())) != 0;
    if (choice == word || (choice == "*" && is_small)) return true;
    if (choice == "*s" && is_small && word.ends_with('s')) return true;
    choices.remove_prefix(std::min(end + 1, choices.size()));
  }
  return false;
}

// Returns whether the words from `at` on have the pattern, which has no ^ and no dot any more.
bool matches_at(const std::vector<Word>& words, std::size_t at, std::string_view pattern) {
  for (bool first = true; !pattern.empty(); first = false, ++at) {
    const std::size_t end = std::min(pattern.find(' '), pattern.size());
    const std::string_view wanted = pattern.substr(0, end);
    pattern.remove_prefix(std::min(end + 1, pattern.size()));
    const bool is_there = at < words.size() && (first || words[at].follows_space);
    if (wanted.starts_with('!')) return !is_there || !is_one_of(words[at].text, wanted.substr(1));
    if (!is_there || !is_one_of(words[at].text, wanted)) return false;
  }
  return true;
}

bool matches(std::string_view sentence, const std::vector<Word>& words, std::string_view pattern) {
  if (pattern.ends_with(" .")) {
    if (sentence.ends_with('?')) return false;
    pattern.remove_suffix(2);
  }
  if (pattern.starts_with('^')) {
    return !words.empty() && words.front().text.data() == sentence.data() &&
           matches_at(words, 0, pattern.substr(1));
  }
  for (std::size_t at = 0; at < words.size(); ++at) {
    if (matches_at(words, at, pattern)) return true;
  }
  return false;
}

}  // namespace

std::string_view stilted_pattern(std::string_view sentence) {
  const std::vector<Word> words = words_of(sentence);
  for (const std::string_view pattern : kPatterns) {
    if (matches(sentence, words, pattern)) return pattern;
  }
  return {};
}

}  // namespace terrace::tidy
