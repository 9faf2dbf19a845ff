#include "runtime/data/text_lines.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <span>

#include "base/error.h"

namespace terrace {
namespace {

constexpr std::size_t kPieceBytes = std::size_t{1} << 16;

// The bytes that follow a character's first one, and the least character that needs so many; none
// of a byte that begins no character.
struct CharacterStart {
  int following = 0;
  std::uint32_t bits = 0;
  std::uint32_t least = 0;
};

std::optional<CharacterStart> character_start(unsigned char byte) {
  if (byte < 0x80) return CharacterStart{0, byte, 0};
  if (byte >= 0xc2 && byte < 0xe0) return CharacterStart{1, byte & 0x1fU, 0x80};
  if (byte >= 0xe0 && byte < 0xf0) return CharacterStart{2, byte & 0x0fU, 0x800};
  if (byte >= 0xf0 && byte < 0xf5) return CharacterStart{3, byte & 0x07U, 0x10000};
  return std::nullopt;
}

bool is_character(std::uint32_t value, std::uint32_t least) {
  const bool is_surrogate = value >= 0xd800 && value < 0xe000;
  return value >= least && value <= 0x10ffff && !is_surrogate;
}

}  // namespace

std::optional<std::size_t> first_invalid_utf8(std::string_view text) {
  for (std::size_t at = 0; at < text.size();) {
    const auto start = character_start(static_cast<unsigned char>(text[at]));
    if (!start) return at;
    std::uint32_t value = start->bits;
    std::size_t next = at + 1;
    for (int i = 0; i < start->following; ++i, ++next) {
      const auto byte = next < text.size() ? static_cast<unsigned char>(text[next]) : 0U;
      if ((byte & 0xc0U) != 0x80U) return at;
      value = value << 6 | (byte & 0x3fU);
    }
    if (!is_character(value, start->least)) return at;
    at = next;
  }
  return std::nullopt;
}

TextLines::TextLines(const std::string& path) : path_(path), bytes_(open_bytes(path)) {
  constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";
  while (end_ < kByteOrderMark.size() && fill()) {
  }
  if (std::string_view(buffer_.data(), end_).starts_with(kByteOrderMark)) {
    begin_ = offset_ = kByteOrderMark.size();
  }
}

// Adds some bytes; false at the end of the file.
bool TextLines::fill() {
  if (begin_ > 0) {
    std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
    end_ -= begin_;
    begin_ = 0;
  }
  if (buffer_.size() < end_ + kPieceBytes) buffer_.resize(2 * end_ + kPieceBytes);
  const std::size_t got = bytes_->read(std::as_writable_bytes(std::span(buffer_).subspan(end_)));
  end_ += got;
  return got > 0;
}

std::optional<std::string_view> TextLines::next() {
  std::size_t looked_at = 0;  // bytes without an end of a line
  for (;;) {
    const std::string_view rest(buffer_.data() + begin_, end_ - begin_);
    const std::size_t length = std::min(rest.find('\n', looked_at), rest.size());
    if (length > kLongestLine) {
      throw CorruptData(
          fmt::format("{}:{}: the line is longer than {} bytes", path_, number_ + 1, kLongestLine),
          "cut long documents before");
    }
    const bool is_whole = length < rest.size();
    looked_at = rest.size();
    if (!is_whole && fill()) continue;
    if (!is_whole && length == 0) return std::nullopt;
    const std::string_view line(buffer_.data() + begin_, length);
    ++number_;
    check_text(line);
    const std::size_t used = length + (is_whole ? 1 : 0);
    begin_ += used;
    offset_ += used;
    return line;
  }
}

void TextLines::check_text(std::string_view line) const {
  const std::optional<std::size_t> wrong = first_invalid_utf8(line);
  if (!wrong) return;
  throw CorruptData(fmt::format("{}: byte {:#04x} at offset {} of the text is not UTF-8", place(),
                                static_cast<unsigned char>(line[*wrong]), offset_ + *wrong),
                    "convert the file to UTF-8, as with iconv");
}

std::string TextLines::place() const { return fmt::format("{}:{}", path_, number_); }

}  // namespace terrace
