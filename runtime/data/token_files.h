#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/data/document_index.h"
#include "runtime/data/token_source.h"

namespace terrace {

// How many documents there are, and of which form. Only documents that come as text are counted.
struct DocumentCounts {
  std::int64_t documents = 0;
  std::int64_t conversations = 0;
  std::int64_t prompts = 0;  // with a completion
  std::int64_t tokens = 0;

  DocumentCounts& operator+=(const DocumentCounts& more) {
    documents += more.documents;
    conversations += more.conversations;
    prompts += more.prompts;
    tokens += more.tokens;
    return *this;
  }
};

// A run of little-endian ids inside a file.
struct TokenFile {
  std::string path;
  std::uint64_t first_byte = 0;  // where the ids begin
  std::int64_t width = 1;        // bytes of an id: 1, 2 or 4
  std::int64_t tokens = 0;
  bool is_text = false;  // the ids are bytes of text, also where they have more than one byte
  std::string kind_of_ids = {};  // KnownIds::kind; empty: the file does not tell
  std::string mask_path = {};    // a byte a token, 0: not trained on; empty: all are
  DocumentIndex documents = {};
  DocumentCounts counts = {};
};

// Reads ids [first, first + out.size()) of a file as they are. Throws IoError.
void read_ids(const TokenFile& file, std::int64_t first, std::span<std::int64_t> out);

// Files, one after the other, as one sequence. Holds nothing of them in memory and keeps none open,
// so any number and any size will do.
class TokenFiles final : public TokenSource {
 public:
  TokenFiles(std::vector<TokenFile> files, std::int64_t vocabulary);

  std::int64_t count() const override;
  bool is_text() const override;
  void read(std::int64_t offset, std::span<std::int32_t> out) const override;
  bool has_mask() const override;
  void read_mask(std::int64_t offset, std::span<std::uint8_t> out) const override;
  bool has_documents() const override;
  void visit_documents(FunctionRef<void(std::int64_t end)> visit) const override;

 private:
  // Calls read_part(file, its first token, part of `out`) for each file that has some of the range.
  template <typename T, typename ReadPart>
  void for_each_part(std::int64_t offset, std::span<T> out, ReadPart read_part) const;
  void read_file(const TokenFile& file, std::int64_t first, std::span<std::int32_t> out) const;

  std::vector<TokenFile> files_;
  std::vector<std::int64_t> ends_;  // ends_[i]: tokens in files 0..i
  std::int64_t vocabulary_;
};

}  // namespace terrace
