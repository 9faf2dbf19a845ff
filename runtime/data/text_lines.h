#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/data/compressed_file.h"

namespace terrace {

// The lines of a file of UTF-8, which may be compressed.
class TextLines {
 public:
  // The longest line that is read; whole lines are held in memory.
  static constexpr std::size_t kLongestLine = std::size_t{16} << 20;

  // Throws IoError. A byte order mark at the beginning is passed over.
  explicit TextLines(const std::string& path);

  // Returns the next line without its end; none at the end of the file. The line is valid until the
  // next call. Throws as ByteStream::read(), and CorruptData for a line that is longer than
  // kLongestLine or is no UTF-8.
  std::optional<std::string_view> next();

  // Returns "FILE:NUMBER" of the line that next() has returned, counted from 1.
  std::string place() const;
  std::uint64_t file_bytes() const { return bytes_->file_bytes(); }

 private:
  bool fill();
  void check_text(std::string_view line) const;

  std::string path_;
  std::unique_ptr<ByteStream> bytes_;
  std::vector<char> buffer_;
  std::size_t begin_ = 0;  // where the bytes begin that are not yet returned
  std::size_t end_ = 0;
  std::int64_t number_ = 0;
  std::uint64_t offset_ = 0;  // of begin_, in the text
};

}  // namespace terrace
