#include "runtime/data/json_line_blocks.h"

#include <fmt/format.h>

#include <optional>
#include <string_view>

#include "base/error.h"
#include "runtime/data/json_document.h"
#include "runtime/data/readable_file.h"

namespace terrace {
namespace {

constexpr std::size_t kLinesBytes = std::size_t{256} << 10;

bool is_blank(std::string_view line) {
  return line.find_first_not_of(" \t\r") == std::string_view::npos;
}

}  // namespace

JsonLineBlocks::JsonLineBlocks(const std::vector<std::string>& files, TextPosition begin)
    : files_(files), position_(begin) {
  for (std::size_t i = 0; i < position_.file; ++i) passed_bytes_ += size_of_file(files_[i]);
  if (position_.offset > 0) open();
  begin_bytes_ = told_bytes_ = passed_bytes_ + (texts_ == nullptr ? 0 : texts_->file_bytes());
}

// Opens the file at the position, and skips the documents before it.
void JsonLineBlocks::open() {
  const std::string& path = files_[position_.file];
  layout_ = json_layout_of_file(path);
  if (layout_ == JsonLayout::kObject) {
    throw ConfigError(fmt::format("{}: one JSON object, neither JSON lines nor an array", path),
                      "write one document on each line, or a list of documents");
  }
  texts_ = open_json_texts(path, layout_);
  for (std::uint64_t line = 0; line < position_.offset && texts_->next(); ++line) {
  }
}

void JsonLineBlocks::close() {
  passed_bytes_ += texts_->file_bytes();
  texts_.reset();
  position_ = {position_.file + 1, 0};
}

bool JsonLineBlocks::next(TextBlock& block) {
  if (position_.file == files_.size()) return false;
  if (texts_ == nullptr) open();
  block.text.clear();
  block.begin = position_;
  block.layout = layout_;
  block.ends_document = true;
  while (block.text.size() < kLinesBytes) {
    const std::optional<std::string_view> line = texts_->next();
    if (!line) break;
    block.text.append(*line) += '\n';
    ++position_.offset;
  }
  const bool is_end = block.text.size() < kLinesBytes;
  const std::uint64_t bytes = passed_bytes_ + texts_->file_bytes();
  if (is_end) close();
  block.end = position_;
  block.source_bytes = bytes - told_bytes_;
  told_bytes_ = bytes;
  return true;
}

void add_json_lines(const TextBlock& block, const std::string& path, const TextTokens& text,
                    std::int64_t vocabulary, DocumentIds& to) {
  std::string_view rest = block.text;
  for (std::uint64_t number = block.begin.offset + 1; !rest.empty(); ++number) {
    const std::size_t length = rest.find('\n');
    const std::string_view line = rest.substr(0, length);
    rest.remove_prefix(length + 1);
    if (is_blank(line)) continue;
    const std::string place = json_place(path, block.layout, number);
    add_document(parse_json_document(line, place, vocabulary), text, place, to);
  }
}

}  // namespace terrace
