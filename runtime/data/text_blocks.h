#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/data/json_texts.h"
#include "runtime/tokenizer/tokenizer.h"

namespace terrace {

// A place in a sequence of files.
struct TextPosition {
  std::uint64_t file = 0;
  std::uint64_t offset = 0;  // bytes of a text, or documents of a file of JSON
};

// A part of a document that by itself has the same ids as in the whole; or lines of JSON with a
// document each.
struct TextBlock {
  std::string text;
  bool ends_document = false;
  TextPosition begin;
  TextPosition end;                        // where the next block begins
  std::uint64_t source_bytes = 0;          // that it takes in the files, which may be compressed
  JsonLayout layout = JsonLayout::kOther;  // of the file, where the lines come from JSON
};

// A source of blocks.
class BlockSource {
 public:
  virtual ~BlockSource() = default;

  // Reads the next block; returns false at the end. Throws IoError, and errors for what a file
  // holds.
  virtual bool next(TextBlock& block) = 0;
  // Returns the bytes of the files that are before the first block.
  virtual std::uint64_t begin_bytes() const = 0;
};

// Reads text files, each of which is one document, in blocks of about a MiB. A document is cut
// where the tokenizer says that it may be; one without such places is one block. For one thread.
class TextBlocks final : public BlockSource {
 public:
  // Borrows `files` and `tokenizer`.
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
