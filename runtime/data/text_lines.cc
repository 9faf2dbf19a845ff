#include "runtime/data/text_lines.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <span>

#include "base/error.h"
#include "base/lfs_pointer.h"
#include "runtime/tokenizer/utf8.h"

namespace terrace {
namespace {

constexpr std::size_t kPieceBytes = std::size_t{1} << 16;

}  // namespace

TextLines::TextLines(const std::string& path) : path_(path), bytes_(open_bytes(path)) {
  constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";
  while (end_ < kLfsPointerBegin.size() && fill()) {
  }
  const std::string_view front(buffer_.data(), end_);
  refuse_lfs_pointer(front, path_);
  if (front.starts_with(kByteOrderMark)) begin_ = offset_ = kByteOrderMark.size();
}

// Adds some bytes to the buffer. Returns false at the end of the file.
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
          "split long documents first");
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
  const std::size_t valid = valid_utf8_prefix(line);
  if (valid == line.size()) return;
  throw CorruptData(fmt::format("{}: byte {:#04x} at offset {} of the text is not UTF-8", place(),
                                static_cast<unsigned char>(line[valid]), offset_ + valid),
                    "convert the file to UTF-8, for example with iconv");
}

std::string TextLines::place() const { return fmt::format("{}:{}", path_, number_); }

}  // namespace terrace
