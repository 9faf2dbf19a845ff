#include "runtime/tokenizer/utf8.h"

#include <algorithm>
#include <cstring>

namespace terrace {
namespace {

constexpr std::size_t kSequenceBytesMax = 4;
constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

// The bytes that begin at a place: a whole sequence, or bytes that are not one.
struct Sequence {
  std::size_t size_bytes = 1;
  bool is_valid = false;
};

// Returns what begins at `at`. The second byte may have only values that rule out overlong forms,
// surrogates and code points above U+10FFFF: table 3-7 of the Unicode Standard.
Sequence sequence_at(std::string_view text, std::size_t at) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[at + i]); };
  const unsigned char first = byte(0);
  if (first < 0x80) return {1, true};
  if (first < 0xC2 || first > 0xF4) return {1, false};
  const std::size_t size = first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
  const std::size_t there = text.size() - at;
  const unsigned char low = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
  const unsigned char high = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
  if (there < 2 || byte(1) < low || byte(1) > high) return {1, false};
  for (std::size_t i = 2; i < size; ++i) {
    if (i >= there || (byte(i) & 0xC0) != 0x80) return {i, false};
  }
  return {size, true};
}

// Returns the place of the first byte from `at` on that is not ASCII; the text's size where there
// is none.
std::size_t skip_ascii(std::string_view text, std::size_t at) {
  constexpr std::uint64_t kHighBits = 0x8080808080808080ULL;
  while (at + sizeof(std::uint64_t) <= text.size()) {
    std::uint64_t word = 0;
    std::memcpy(&word, text.data() + at, sizeof word);
    if ((word & kHighBits) != 0) break;
    at += sizeof word;
  }
  while (at < text.size() && static_cast<unsigned char>(text[at]) < 0x80) ++at;
  return at;
}

}  // namespace

std::optional<char32_t> first_code_point(std::string_view text) {
  if (text.empty() || !sequence_at(text, 0).is_valid) return std::nullopt;
  return code_point_at(text, 0).value;
}

std::optional<char32_t> last_code_point(std::string_view text) {
  for (std::size_t size = 1; size <= std::min(text.size(), kSequenceBytesMax); ++size) {
    const std::string_view last = text.substr(text.size() - size);
    const Sequence sequence = sequence_at(last, 0);
    if (sequence.is_valid && sequence.size_bytes == size) return code_point_at(last, 0).value;
  }
  return std::nullopt;
}

void append_utf8(char32_t code_point, std::string& text) {
  const auto put = [&](char32_t byte) { text.push_back(static_cast<char>(byte)); };
  if (code_point < 0x80) return put(code_point);
  if (code_point < 0x800) {
    put(0xC0 | code_point >> 6);
  } else if (code_point < 0x10000) {
    put(0xE0 | code_point >> 12);
    put(0x80 | (code_point >> 6 & 0x3F));
  } else {
    put(0xF0 | code_point >> 18);
    put(0x80 | (code_point >> 12 & 0x3F));
    put(0x80 | (code_point >> 6 & 0x3F));
  }
  put(0x80 | (code_point & 0x3F));
}

std::size_t valid_utf8_prefix(std::string_view text) {
  std::size_t at = skip_ascii(text, 0);
  while (at < text.size()) {
    const Sequence sequence = sequence_at(text, at);
    if (!sequence.is_valid) return at;
    at += sequence.size_bytes;
    if (at < text.size() && static_cast<unsigned char>(text[at]) < 0x80) at = skip_ascii(text, at);
  }
  return text.size();
}

std::string replace_invalid_utf8(std::string_view text) {
  std::string valid;
  valid.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t good = valid_utf8_prefix(text.substr(at));
    valid += text.substr(at, good);
    at += good;
    if (at == text.size()) break;
    valid += kReplacement;
    at += sequence_at(text, at).size_bytes;
  }
  return valid;
}

}  // namespace terrace
