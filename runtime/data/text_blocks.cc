#include "runtime/data/text_blocks.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <string_view>
#include <utility>

#include "base/bytes.h"
#include "base/error.h"
#include "base/lfs_pointer.h"
#include "runtime/data/readable_file.h"

namespace terrace {
namespace {

constexpr std::size_t kBlockBytes = kMiB;
constexpr std::size_t kLookedAtBytes = 64 * kKiB;

}  // namespace

struct TextBlocks::File {
  std::ifstream stream;
  std::string path;

  // Appends up to `size_bytes` bytes; fewer at the end of the file.
  void read(std::size_t size_bytes, std::string& text) {
    const std::size_t before = text.size();
    text.resize(before + size_bytes);
    stream.read(text.data() + before, static_cast<std::streamsize>(size_bytes));
    if (stream.bad()) throw IoError({.operation = "read", .path = path, .error_number = errno});
    text.resize(before + static_cast<std::size_t>(stream.gcount()));
  }
};

TextBlocks::TextBlocks(const std::vector<std::string>& files, const Tokenizer& tokenizer,
                       TextPosition begin)
    : files_(files), tokenizer_(tokenizer), begin_(begin), position_(begin) {}

TextBlocks::~TextBlocks() = default;

void TextBlocks::open() {
  file_ = std::make_unique<File>();
  file_->path = files_[position_.file];
  file_->stream.open(file_->path, std::ios::binary);
  if (!file_->stream) {
    throw IoError({.operation = "open", .path = file_->path, .error_number = errno});
  }
  ahead_.clear();
  file_->read(kLookedAtBytes, ahead_);
  refuse_lfs_pointer(ahead_, file_->path);
  if (ahead_.find('\0') != std::string::npos) {
    throw ConfigError(fmt::format("{}: contains zero bytes, so it is not text", file_->path),
                      "name text files, or a directory that contains only text files");
  }
  if (position_.offset == 0) return;
  ahead_.clear();
  file_->stream.clear();
  file_->stream.seekg(static_cast<std::streamoff>(position_.offset));
}

std::uint64_t TextBlocks::begin_bytes() const {
  std::uint64_t bytes = begin_.offset;
  for (std::size_t i = 0; i < begin_.file; ++i) bytes += size_of_file(files_[i]);
  return bytes;
}

bool TextBlocks::next(TextBlock& block) {
  if (position_.file == files_.size()) return false;
  block.begin = position_;
  if (file_ == nullptr) open();
  // Whether the text may be cut at a place shows only with the text after it.
  for (std::size_t wanted = 2 * kBlockBytes;; wanted *= 2) {
    if (ahead_.size() < wanted) file_->read(wanted - ahead_.size(), ahead_);
    const bool is_all = ahead_.size() < wanted;
    if (is_all && ahead_.size() <= kBlockBytes) break;
    const std::size_t cut = tokenizer_.find_cut(ahead_, kBlockBytes);
    if (cut < ahead_.size()) {
      block.text.assign(ahead_, 0, cut);
      ahead_.erase(0, cut);
      block.ends_document = false;
      block.source_bytes = cut;
      position_.offset += cut;
      block.end = position_;
      return true;
    }
    if (is_all) break;
  }
  finish(block);
  return true;
}

void TextBlocks::finish(TextBlock& block) {
  block.text = std::move(ahead_);
  block.source_bytes = block.text.size();
  ahead_.clear();
  block.ends_document = true;
  file_.reset();
  position_ = {position_.file + 1, 0};
  block.end = position_;
}

}  // namespace terrace
