#include "runtime/tokenizer/added_tokens.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "runtime/tokenizer/utf8.h"

namespace terrace {

AddedTokenFinder::AddedTokenFinder(std::vector<AddedToken> tokens, const UnicodeClasses& classes)
    : tokens_(std::move(tokens)), nodes_(1), is_first_byte_(256), classes_(classes) {
  for (std::size_t i = 0; i < tokens_.size(); ++i) {
    const std::string& content = tokens_[i].content;
    if (content.empty()) continue;
    add(content, static_cast<std::int32_t>(i));
    const auto first = static_cast<unsigned char>(content.front());
    if (!is_first_byte_[first]) first_bytes_ += content.front();
    is_first_byte_[first] = true;
  }
}

void AddedTokenFinder::add(const std::string& content, std::int32_t token) {
  std::int32_t node = 0;
  for (const char c : content) {
    const auto byte = static_cast<unsigned char>(c);
    std::int32_t next = child(node, byte);
    if (next == kNone) {
      next = static_cast<std::int32_t>(nodes_.size());
      nodes_.emplace_back();
      nodes_[static_cast<std::size_t>(node)].next.emplace_back(byte, next);
    }
    node = next;
  }
  std::int32_t& there = nodes_[static_cast<std::size_t>(node)].token;
  if (there == kNone) there = token;
}

std::int32_t AddedTokenFinder::child(std::int32_t node, unsigned char byte) const {
  for (const auto& [edge, next] : nodes_[static_cast<std::size_t>(node)].next) {
    if (edge == byte) return next;
  }
  return kNone;
}

std::size_t AddedTokenFinder::next_first_byte(std::string_view text, std::size_t from) const {
  if (first_bytes_.size() == 1) {
    const void* found = std::memchr(text.data() + from, first_bytes_.front(), text.size() - from);
    if (found == nullptr) return text.size();
    return static_cast<std::size_t>(static_cast<const char*>(found) - text.data());
  }
  while (from < text.size() && !is_first_byte_[static_cast<unsigned char>(text[from])]) ++from;
  return from;
}

const AddedToken* AddedTokenFinder::longest_at(std::string_view text, std::size_t at) const {
  const AddedToken* longest = nullptr;
  std::int32_t node = 0;
  for (; at < text.size(); ++at) {
    node = child(node, static_cast<unsigned char>(text[at]));
    if (node == kNone) break;
    const std::int32_t token = nodes_[static_cast<std::size_t>(node)].token;
    if (token != kNone) longest = &tokens_[static_cast<std::size_t>(token)];
  }
  return longest;
}

AddedTokenFinder::Match AddedTokenFinder::find(std::string_view text, std::size_t from) const {
  for (std::size_t at = next_first_byte(text, from); at < text.size();
       at = next_first_byte(text, at + 1)) {
    const AddedToken* token = longest_at(text, at);
    if (token != nullptr) return {at, token};
  }
  return {};
}

bool AddedTokenFinder::is_single_word(std::string_view text, std::size_t begin,
                                      std::size_t end) const {
  const auto is_word = [&](const CodePoint& point) {
    return classes_.is(point.value, CodePointClass::kWord);
  };
  if (begin > 0 && is_word(code_point_before(text, begin))) return false;
  return end == text.size() || !is_word(code_point_at(text, end));
}

std::size_t AddedTokenFinder::before_spaces(std::string_view text, std::size_t end) const {
  while (end > 0) {
    const CodePoint point = code_point_before(text, end);
    if (!classes_.is(point.value, CodePointClass::kSpace)) break;
    end -= point.size_bytes;
  }
  return end;
}

std::size_t AddedTokenFinder::behind_spaces(std::string_view text, std::size_t begin) const {
  while (begin < text.size()) {
    const CodePoint point = code_point_at(text, begin);
    if (!classes_.is(point.value, CodePointClass::kSpace)) break;
    begin += point.size_bytes;
  }
  return begin;
}

void AddedTokenFinder::cut(std::string_view text, FunctionRef<void(const Part&)> take) const {
  std::size_t done = 0;      // parts up to here are taken
  std::size_t searched = 0;  // the next match begins here or later
  while (!tokens_.empty() && searched < text.size()) {
    const Match match = find(text, searched);
    if (match.token == nullptr) break;
    const AddedToken& token = *match.token;
    std::size_t begin = match.begin;
    std::size_t end = begin + token.content.size();
    searched = end;
    if (token.single_word && !is_single_word(text, begin, end)) continue;
    // A token never takes the white space that the token before it took.
    if (token.lstrip) begin = std::max(before_spaces(text, begin), done);
    if (token.rstrip) end = behind_spaces(text, end);
    if (done < begin) take({text.substr(done, begin - done), done, kText});
    take({text.substr(begin, end - begin), begin, token.id});
    done = end;
  }
  if (done < text.size()) take({text.substr(done), done, kText});
}

}  // namespace terrace
