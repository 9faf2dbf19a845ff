#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/data/document_encoder.h"
#include "runtime/data/scratch_file.h"
#include "runtime/data/token_files.h"

namespace terrace {

// Documents as token files: ids (u16, or u32 for a vocabulary of more than 65536), ends of
// documents and a mask, each in a file of its own, as `terrace tokenize` writes them.
struct TokenizedData {
  std::unique_ptr<ScratchFile> ids, ends, mask;
  std::int64_t width = 2;
  std::int64_t tokens = 0;
  bool is_text = false;   // the ids are bytes of text
  bool has_mask = false;  // some document has a prompt or a mask
  DocumentCounts counts;

  // Returns the files as TokenFiles reads them. This object must outlive the reader.
  TokenFile token_file() const;
};

// Tokenizes documents into files without a name, in memory that does not depend on their number.
class ScratchTokenizing {
 public:
  // All ids are below the request's vocabulary. Borrows the tokenizer. Throws ConfigError where the
  // tokenizer has more ids, and IoError.
  explicit ScratchTokenizing(DocumentEncoder::Request request);

  // Tokenizes until the end or until `deadline` has passed. Returns false when all is done. Throws
  // as DocumentEncoder::next(), and IoError.
  bool advance(std::chrono::steady_clock::time_point deadline);
  std::uint64_t done_bytes() const { return done_bytes_; }  // of the files
  std::uint64_t total_bytes() const { return encoder_.total_bytes(); }

  // Returns the data. To be called after the end. Throws ConfigError where there is no document.
  TokenizedData take();

 private:
  void add(const DocumentIds& documents);

  std::string names_;  // of the files, for messages
  bool is_bytes_;
  DocumentEncoder encoder_;
  std::uint64_t done_bytes_ = 0;
  TokenizedData data_;
};

}  // namespace terrace
