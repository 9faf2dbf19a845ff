#include "runtime/data/json_line_blocks.h"

#include <fmt/format.h>

#include <optional>
#include <string_view>

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
  begin_bytes_ = told_bytes_ = passed_bytes_ + (lines_ == nullptr ? 0 : lines_->file_bytes());
}

// Opens the file at the position, and skips the lines before it.
void JsonLineBlocks::open() {
  lines_ = std::make_unique<TextLines>(files_[position_.file]);
  for (std::uint64_t line = 0; line < position_.offset && lines_->next(); ++line) {
  }
}

void JsonLineBlocks::close() {
  passed_bytes_ += lines_->file_bytes();
  lines_.reset();
  position_ = {position_.file + 1, 0};
}

bool JsonLineBlocks::next(TextBlock& block) {
  if (position_.file == files_.size()) return false;
  if (lines_ == nullptr) open();
  block.text.clear();
  block.begin = position_;
  block.ends_document = true;
  while (block.text.size() < kLinesBytes) {
    const std::optional<std::string_view> line = lines_->next();
    if (!line) break;
    block.text.append(*line) += '\n';
    ++position_.offset;
  }
  const bool is_end = block.text.size() < kLinesBytes;
  const std::uint64_t bytes = passed_bytes_ + lines_->file_bytes();
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
    add_document(parse_json_document(line, fmt::format("{}:{}", path, number), vocabulary), text,
                 to);
  }
}

}  // namespace terrace
