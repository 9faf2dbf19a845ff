#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/tokenizer/tokenizer.h"

namespace terrace {

// A place in a sequence of text files.
struct TextPosition {
  std::uint64_t file = 0;
  std::uint64_t offset = 0;  // bytes
};

// A part of a document whose ids are those that it has in the whole.
struct TextBlock {
  std::string text;
  bool ends_document = false;
  TextPosition end;  // where the next block begins
};

// Reads text files, each of which is one document, in blocks of about a MiB, cut where the
// tokenizer says that it may be; a document without such places is one block. One thread.
class TextBlocks {
 public:
  // Both stay the caller's.
  TextBlocks(const std::vector<std::string>& files, const Tokenizer& tokenizer,
             TextPosition begin = {});
  ~TextBlocks();

  // The next block; false at the end. Throws IoError, and ConfigError for a file that begins with
  // bytes that no text has.
  bool next(TextBlock& block);

 private:
  struct File;
  void open();
  void finish(TextBlock& block);

  const std::vector<std::string>& files_;
  const Tokenizer& tokenizer_;
  TextPosition position_;
  std::unique_ptr<File> file_;  // the one that is read
  std::string ahead_;           // read and not given out yet
};

}  // namespace terrace
