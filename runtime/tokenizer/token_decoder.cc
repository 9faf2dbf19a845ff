#include "runtime/tokenizer/token_decoder.h"

#include <fmt/format.h>

#include <charconv>
#include <cstddef>

#include "base/check.h"
#include "base/error.h"
#include "runtime/tokenizer/byte_alphabet.h"

namespace terrace {
namespace {

std::string replace_all(std::string text, const std::string& pattern, const std::string& content) {
  for (std::size_t at = text.find(pattern); at != std::string::npos;
       at = text.find(pattern, at + content.size())) {
    text.replace(at, pattern.size(), content);
  }
  return text;
}

// Returns the byte that "<0x0A>" stands for; -1 for another token.
int byte_of(std::string_view token) {
  constexpr std::size_t kSize = 6;
  if (token.size() != kSize || !token.starts_with("<0x") || token.back() != '>') return -1;
  int byte = 0;
  const auto [end, error] = std::from_chars(&token[3], &token[5], byte, 16);
  return error == std::errc() && end == &token[5] ? byte : -1;
}

}  // namespace

std::string TokenDecoder::bytes_of(const std::string& token) const {
  static const ByteAlphabet kAlphabet;
  if (options_.byte_level) return kAlphabet.bytes_of(token).value_or(token);
  std::string text = token;
  for (const auto& [pattern, content] : options_.replaces) {
    text = replace_all(std::move(text), pattern, content);
  }
  const int byte = options_.byte_fallback ? byte_of(text) : -1;
  return byte < 0 ? text : std::string(1, static_cast<char>(byte));
}

void TokenDecoder::add(std::int32_t id, const std::string& token, bool is_verbatim) {
  TERRACE_CHECK(id >= 0);
  const auto index = static_cast<std::size_t>(id);
  if (index >= texts_.size()) texts_.resize(index + 1);
  texts_[index].bytes = is_verbatim ? token : bytes_of(token);
  if (!options_.first_token_drops.empty()) texts_[index].token = token;
}

std::string TokenDecoder::decode(std::span<const std::int32_t> ids) const {
  std::string text;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= vocabulary()) {
      throw ConfigError(
          fmt::format("id {} is not in the tokenizer's vocabulary of {}", ids[i], vocabulary()),
          "decode it with the tokenizer that made it");
    }
    const Text& token = texts_[static_cast<std::size_t>(ids[i])];
    if (i == 0 && !options_.first_token_drops.empty()) {
      text += replace_all(token.token, options_.first_token_drops, "");
    } else {
      text += token.bytes;
    }
  }
  for (std::int64_t i = 0; i < options_.strip_count && text.starts_with(options_.strip); ++i) {
    text.erase(0, options_.strip.size());
  }
  return text;
}

}  // namespace terrace
