#include "runtime/data/json_texts.h"

#include <fmt/format.h>

#include <span>

#include "base/error.h"
#include "runtime/data/compressed_file.h"
#include "runtime/data/json_array.h"
#include "runtime/data/text_lines.h"

namespace terrace {
namespace {

constexpr std::size_t kFrontBytes = std::size_t{64} << 10;
constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";

// Reads the first bytes of a file, decompressed.
std::string read_front(const std::string& path) {
  const std::unique_ptr<ByteStream> bytes = open_bytes(path);
  std::string front(kFrontBytes, '\0');
  std::size_t have = 0;
  while (have < front.size()) {
    const std::size_t got =
        bytes->read(std::as_writable_bytes(std::span(front.data() + have, front.size() - have)));
    if (got == 0) break;
    have += got;
  }
  front.resize(have);
  return front;
}

// Returns whether a line ends within an object that may go on in the next line: brackets are open,
// and no text is, as texts end in their line.
bool goes_on(std::string_view line) {
  int depth = 0;
  bool is_in_text = false;
  for (std::size_t i = 0; i < line.size(); ++i) {
    const char c = line[i];
    if (is_in_text && c == '\\') {
      ++i;
    } else if (c == '"') {
      is_in_text = !is_in_text;
    } else if (!is_in_text) {
      depth += c == '{' || c == '[' ? 1 : c == '}' || c == ']' ? -1 : 0;
    }
  }
  return depth > 0 && !is_in_text;
}

class LineTexts final : public JsonTexts {
 public:
  explicit LineTexts(const std::string& path) : lines_(path) {}
  std::optional<std::string_view> next() override { return lines_.next(); }
  std::uint64_t file_bytes() const override { return lines_.file_bytes(); }

 private:
  TextLines lines_;
};

}  // namespace

JsonLayout json_layout(std::string_view front) {
  if (front.starts_with(kByteOrderMark)) front.remove_prefix(kByteOrderMark.size());
  const std::size_t first = front.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos) return JsonLayout::kOther;
  if (front[first] == '[') return JsonLayout::kArray;
  if (front[first] != '{') return JsonLayout::kOther;
  const std::size_t end = front.find('\n', first);
  // A line that is longer than the front is taken for a whole object.
  if (end == std::string_view::npos) return JsonLayout::kLines;
  return goes_on(front.substr(first, end - first)) ? JsonLayout::kObject : JsonLayout::kLines;
}

std::unique_ptr<JsonTexts> open_json_texts(const std::string& path, JsonLayout layout) {
  if (layout == JsonLayout::kArray) return open_json_array(path);
  return std::make_unique<LineTexts>(path);
}

JsonLayout json_layout_of_file(const std::string& path) { return json_layout(read_front(path)); }

std::string json_place(const std::string& path, JsonLayout layout, std::uint64_t number) {
  if (layout != JsonLayout::kArray) return fmt::format("{}:{}", path, number);
  return fmt::format("{}: object {} (jq '.[{}]')", path, number, number - 1);
}

}  // namespace terrace
