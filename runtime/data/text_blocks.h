#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/tokenizer/tokenizer.h"

namespace terrace {

// A place in a sequence of files.
struct TextPosition {
  std::uint64_t file = 0;
  std::uint64_t offset = 0;  // bytes of a text, or lines of JSON lines
};

// A part of a document whose ids are those that it has in the whole; or lines with a document each.
struct TextBlock {
  std::string text;
  bool ends_document = false;
  TextPosition begin;
  TextPosition end;                // where the next block begins
  std::uint64_t source_bytes = 0;  // of the files, which may be compressed, that it stands for
};

// Where blocks come from.
class BlockSource {
 public:
  virtual ~BlockSource() = default;

  // The next block; false at the end. Throws IoError, and what a file's content asks for.
  virtual bool next(TextBlock& block) = 0;
  // Bytes of the files that are before the first block.
  virtual std::uint64_t begin_bytes() const = 0;
};

// Reads text files, each of which is one document, in blocks of about a MiB, cut where the
// tokenizer says that it may be; a document without such places is one block. One thread.
class TextBlocks final : public BlockSource {
 public:
  // Both stay the caller's.
  TextBlocks(const std::vector<std::string>& files, const Tokenizer& tokenizer,
             TextPosition begin = {});
  ~TextBlocks() override;

  // Throws ConfigError for a file that begins with bytes that no text has.
  bool next(TextBlock& block) override;
  std::uint64_t begin_bytes() const override;

 private:
  struct File;
  void open();
  void finish(TextBlock& block);

  const std::vector<std::string>& files_;
  const Tokenizer& tokenizer_;
  const TextPosition begin_;
  TextPosition position_;
  std::unique_ptr<File> file_;  // the one that is read
  std::string ahead_;           // read and not given out yet
};

}  // namespace terrace
