#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/data/document_ids.h"
#include "runtime/data/text_blocks.h"

namespace terrace {

// The progress of writing a token file.
struct TokenFileState {
  TextPosition source;          // the place that is read next
  std::uint64_t tokens = 0;     // in the token file
  std::uint64_t documents = 0;  // that are complete
  // The number of tokens that are trained on; none where no document has said.
  std::optional<std::uint64_t> trained;
};

// Returns every file that a writer of `path` makes, replaces or removes, `path` itself first.
std::vector<std::string> token_file_names(const std::string& path);

// Writes a token file of raw little-endian ids of 2 or 4 bytes. Beside it, it writes NAME.idx,
// which has, for each document, the place after its last token as a little-endian u64, and perhaps
// NAME.mask, which has a byte for each token. Until finish() they are called NAME.partial and
// NAME.idx.partial and so on, and NAME.state says how much of them is good, so that another process
// can continue. NAME.partial is locked (flock), where the file system has locks, so that two
// processes do not write the same files. For one thread.
class TokenFileWriter {
 public:
  struct Options {
    std::string path;
    std::int64_t width = 2;    // bytes of an id
    bool writes_mask = false;  // some documents may say what is trained on
    // A hash of everything that decides the ids. Only files with the same fingerprint are
    // continued.
    std::uint64_t fingerprint = 0;
  };

  // Continues the files that are there, or begins anew. Throws IoError, also where another writer
  // has the files.
  explicit TokenFileWriter(Options options);
  ~TokenFileWriter();

  // Returns the state from which the files are continued; nothing where they begin anew.
  const std::optional<TokenFileState>& resumed() const { return resumed_; }
  const TokenFileState& state() const { return state_; }

  // Appends documents. Throws IoError, as the functions below do.
  void append(const DocumentIds& documents);
  // Marks everything that was written so far as good. `source` is the place that comes next.
  void save(const TextPosition& source);
  // Gives the files their names. NAME.mask is there if a document has said what is trained on.
  // Otherwise an older one is removed, because it does not belong to these ids.
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
