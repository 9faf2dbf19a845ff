#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/data/document_ids.h"
#include "runtime/data/text_blocks.h"

namespace terrace {

// How far a token file is written.
struct TokenFileState {
  TextPosition source;          // what is read next
  std::uint64_t tokens = 0;     // in the token file
  std::uint64_t documents = 0;  // that are complete
  // Tokens that are trained on; none where no document has said.
  std::optional<std::uint64_t> trained;
};

// Every file that a writer of `path` makes, replaces or removes, `path` itself first.
std::vector<std::string> token_file_names(const std::string& path);

// Writes a token file, raw little-endian ids of 2 or 4 bytes, and beside it NAME.idx, for each
// document the place behind its last token as a little-endian u64, and perhaps NAME.mask, a byte a
// token. Until finish() they are called NAME.partial and NAME.idx.partial and so on, and NAME.state
// says how much of them is good, so that another process can go on. NAME.partial is locked (flock),
// where the file system has locks, so that two processes do not write the same files. One thread.
class TokenFileWriter {
 public:
  struct Options {
    std::string path;
    std::int64_t width = 2;    // bytes of an id
    bool writes_mask = false;  // some documents may say what is trained on
    // Of everything that decides about the ids: only files of the same are gone on with.
    std::uint64_t fingerprint = 0;
  };

  // Goes on with what is there, or begins anew. Throws IoError, also where another writer has the
  // files.
  explicit TokenFileWriter(Options options);
  ~TokenFileWriter();

  // What was there to go on with; nothing where the files begin anew.
  const std::optional<TokenFileState>& resumed() const { return resumed_; }
  const TokenFileState& state() const { return state_; }

  // Throws IoError, as the others do.
  void append(const DocumentIds& documents);
  // Makes what was written so far good: `source` is what comes next.
  void save(const TextPosition& source);
  // Gives the files their names. NAME.mask is there where a document has said what is trained on;
  // an older one is removed, as it is not of these ids.
  void finish();

 private:
  struct Files;
  void append_ids(const std::vector<std::int32_t>& ids);
  void append_mask(const DocumentIds& documents);
  void write_state() const;
  std::optional<TokenFileState> read_state() const;

  Options options_;
  std::unique_ptr<Files> files_;
  std::optional<TokenFileState> resumed_;
  TokenFileState state_;
  std::vector<std::uint16_t> narrow_ids_;
};

}  // namespace terrace
