#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/data/scratch_file.h"
#include "runtime/data/text_lines.h"
#include "runtime/data/token_files.h"
#include "runtime/tokenizer/tokenizer.h"

namespace terrace {

struct JsonDocument;

// Documents as token files: ids (u16, or u32 of a vocabulary of more than 65536), ends of documents
// and a mask, each in a file of its own, as `terrace tokenize` writes them.
struct TokenizedData {
  std::unique_ptr<ScratchFile> ids, ends, mask;
  std::int64_t width = 2;
  std::int64_t tokens = 0;
  bool is_text = false;   // the ids are bytes of text
  bool has_mask = false;  // some document has a prompt or a mask

  // The files as TokenFiles reads them; this object outlives that.
  TokenFile token_file() const;
};

// How text becomes ids.
struct TextTokens {
  const Tokenizer& tokenizer;
  bool is_bytes = false;  // the ids are those of the text's bytes
};

// Tokenizes the documents of JSONL files one after the other, in memory that does not depend on
// their number. A document with a prompt has the tokens of the prompt and of the completion, each
// tokenized by itself, as the prompt is when it is sampled from. The tokens that the
// tokenizer has for the beginning and the end, if any, are those of each document but of one that
// comes as ids.
class JsonTokenizing {
 public:
  // `vocabulary`: all ids are below it. Borrows the tokenizer. Throws ConfigError where the
  // tokenizer has more ids, and IoError.
  JsonTokenizing(std::vector<std::string> files, const TextTokens& text, std::int64_t vocabulary);

  // Goes on until the end or until `deadline` has passed; false when all is done. Throws as
  // TextLines and parse_json_document() do, and IoError.
  bool advance(std::chrono::steady_clock::time_point deadline);
  std::uint64_t done_bytes() const;  // of the files
  std::uint64_t total_bytes() const { return total_bytes_; }

  // After the end. Throws ConfigError where there is no document.
  TokenizedData take();

 private:
  bool next_document();
  void add(const JsonDocument& document);
  void add_text(const std::string& text, bool is_completion);
  void add_token(std::int32_t id, bool is_trained);

  std::vector<std::string> files_;
  TextTokens text_;
  std::int64_t vocabulary_;
  std::uint64_t total_bytes_ = 0;
  std::uint64_t passed_bytes_ = 0;  // of files that are done
  std::size_t next_file_ = 0;
  std::unique_ptr<TextLines> lines_;
  TokenizedData data_;
  std::int64_t documents_ = 0;
  std::vector<std::int32_t> ids_;  // of a text
};

}  // namespace terrace
