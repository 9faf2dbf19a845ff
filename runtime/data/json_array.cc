#include "runtime/data/json_array.h"

#include <fmt/format.h>

#include <span>
#include <vector>

#include "base/error.h"
#include "runtime/data/compressed_file.h"
#include "runtime/data/text_lines.h"
#include "runtime/tokenizer/utf8.h"

namespace terrace {
namespace {

constexpr const char* kArrayRemedy =
    "write one array of objects, with commas between them, in UTF-8";

// Cuts an array into the texts of its items, by brackets and quotation marks alone. The items
// themselves are parsed later.
class ArrayTexts final : public JsonTexts {
 public:
  explicit ArrayTexts(const std::string& path) : path_(path), bytes_(open_bytes(path)) {
    constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";
    for (const char byte : kByteOrderMark) {
      if (peek() != static_cast<unsigned char>(byte)) break;
      take();
    }
    skip_space();
    if (peek() != '[') fail("no [ stands before it");
    take();
  }

  std::optional<std::string_view> next() override {
    if (is_done_) return std::nullopt;
    skip_space();
    if (peek() == ']') return end();
    if (number_ > 0) {
      if (peek() != ',') fail("a comma or ] must stand before it");
      take();
      skip_space();
    }
    read_item();
    ++number_;
    return item_;
  }

  std::uint64_t file_bytes() const override { return bytes_->file_bytes(); }

 private:
  static constexpr int kEnd = -1;

  // Returns the next byte, or kEnd.
  int peek() {
    if (at_ == buffer_.size()) {
      constexpr std::size_t kPieceBytes = std::size_t{1} << 16;
      buffer_.resize(kPieceBytes);
      buffer_.resize(bytes_->read(std::as_writable_bytes(std::span(buffer_))));
      at_ = 0;
    }
    return at_ == buffer_.size() ? kEnd : static_cast<unsigned char>(buffer_[at_]);
  }
  void take() { ++at_; }

  static bool is_space(int byte) {
    return byte == ' ' || byte == '\t' || byte == '\r' || byte == '\n';
  }
  void skip_space() {
    while (is_space(peek())) take();
  }

  std::optional<std::string_view> end() {
    take();
    skip_space();
    if (peek() != kEnd) fail("the array has ended before it");
    is_done_ = true;
    return std::nullopt;
  }

  // Reads an item up to the comma or bracket that follows it. The ends of lines become spaces.
  void read_item() {
    item_.clear();
    int depth = 0;
    bool is_in_text = false;
    while (true) {
      const int byte = peek();
      if (byte == kEnd) fail("the file ends within it");
      const auto c = static_cast<char>(byte);
      const bool ends_line = c == '\n' || c == '\r';
      if (!is_in_text && depth == 0 && (c == ',' || c == ']')) break;
      if (is_in_text && ends_line) fail("a text in it goes over the end of a line");
      take();
      item_ += ends_line ? ' ' : c;
      if (item_.size() > TextLines::kLongestLine) {
        fail(fmt::format("it is longer than {} bytes", TextLines::kLongestLine));
      }
      if (is_in_text && c == '\\' && (peek() == '"' || peek() == '\\')) {
        item_ += static_cast<char>(peek());
        take();
      } else if (c == '"') {
        is_in_text = !is_in_text;
      } else if (!is_in_text) {
        depth += c == '{' || c == '[' ? 1 : c == '}' || c == ']' ? -1 : 0;
      }
    }
    if (item_.empty()) fail("a comma or bracket stands in its place");
    if (valid_utf8_prefix(item_) != item_.size()) fail("it is not UTF-8");
  }

  // Throws the error for the item that comes next.
  [[noreturn]] void fail(const std::string& what) const {
    throw CorruptData(
        fmt::format("{}: {}", json_place(path_, JsonLayout::kArray, number_ + 1), what),
        kArrayRemedy);
  }

  std::string path_;
  std::unique_ptr<ByteStream> bytes_;
  std::vector<char> buffer_;
  std::size_t at_ = 0;
  std::string item_;
  std::uint64_t number_ = 0;  // of items that are read
  bool is_done_ = false;
};

}  // namespace

std::unique_ptr<JsonTexts> open_json_array(const std::string& path) {
  return std::make_unique<ArrayTexts>(path);
}

}  // namespace terrace
