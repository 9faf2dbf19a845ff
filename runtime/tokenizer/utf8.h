#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace terrace {

// A code point of a text, and the bytes that it takes there.
struct CodePoint {
  char32_t value = 0;
  std::size_t size_bytes = 0;
};

// Reads the code point that begins at `at`, which is inside the text. The text is valid UTF-8.
inline CodePoint code_point_at(std::string_view text, std::size_t at) {
  const auto byte = [&](std::size_t i) {
    return static_cast<char32_t>(static_cast<unsigned char>(text[at + i]));
  };
  const char32_t first = byte(0);
  if (first < 0x80) return {first, 1};
  if (first < 0xE0) return {(first & 0x1F) << 6 | (byte(1) & 0x3F), 2};
  if (first < 0xF0) return {(first & 0x0F) << 12 | (byte(1) & 0x3F) << 6 | (byte(2) & 0x3F), 3};
  return {(first & 0x07) << 18 | (byte(1) & 0x3F) << 12 | (byte(2) & 0x3F) << 6 | (byte(3) & 0x3F),
          4};
}

// Reads the code point that ends before `end`, which is not 0. The text is valid UTF-8.
inline CodePoint code_point_before(std::string_view text, std::size_t end) {
  std::size_t at = end - 1;
  while ((static_cast<unsigned char>(text[at]) & 0xC0) == 0x80) --at;
  return code_point_at(text, at);
}

// Returns the code point that begins, or ends, a text that need not be valid; nothing where no
// valid one does.
std::optional<char32_t> first_code_point(std::string_view text);
std::optional<char32_t> last_code_point(std::string_view text);

void append_utf8(char32_t code_point, std::string& text);

// Returns how many bytes of the text are valid UTF-8 from its beginning on.
std::size_t valid_utf8_prefix(std::string_view text);

// Replaces bytes that are not UTF-8 by U+FFFD, once for each longest beginning of a sequence that
// could have become valid, as the Unicode Standard recommends ("maximal subparts") and as Python's
// bytes.decode("utf-8", errors="replace") does.
std::string replace_invalid_utf8(std::string_view text);

}  // namespace terrace
