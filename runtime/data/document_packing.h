#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/data/token_source.h"

// Documents as sequences of a fixed length. docs/data.md explains it.
namespace terrace {

// Tokens [begin, begin + rows] of a source: `rows` inputs, each with the token after it as its
// target.
struct PackedPiece {
  std::int64_t begin = 0;
  std::int32_t rows = 0;
};

// How many documents of a range were packed, split, truncated or dropped, and into how many
// sequences and rows.
struct PackingCounts {
  std::int64_t documents = 0;
  std::int64_t sequences = 0;
  std::int64_t rows = 0;     // that have a target; the rest of the sequences is padding
  std::int64_t trained = 0;  // rows whose target is trained on
  std::int64_t split = 0;    // documents in several pieces
  std::int64_t truncated = 0;
  std::int64_t truncated_tokens = 0;  // that were cut off
  std::int64_t too_short = 0;         // dropped: fewer than two tokens
  std::int64_t untrained = 0;         // dropped: none of the tokens that are left is trained on

  void add(const PackingCounts& more);
};

struct PackingOptions {
  std::int64_t sequence_length = 0;  // rows
  bool joins_documents = true;       // false: a document, or a piece of one, to a sequence
  bool uses_mask = true;             // false: all tokens are trained on
};

// The documents in [begin, end) of a source as sequences. Takes 12 bytes a piece and 8 a sequence.
//
// A document that is longer than a sequence is truncated to one if some of its targets are not
// trained on, because text that follows a prompt makes no sense without it. Other long documents
// are split. The first token of a document is no target. Pieces go, in the order of the documents,
// into the first open sequence that has room. At most kOpen sequences are open; the fullest is
// closed for another. So the sequences depend on the documents and the options alone.
class PackedSequences {
 public:
  static constexpr std::size_t kOpen = 64;

  // `begin` and `end` are ends of documents. Reads the whole mask where the options use it.
  // Throws as the source does.
  PackedSequences(const TokenSource& source, std::int64_t begin, std::int64_t end,
                  const PackingOptions& options);

  std::int64_t count() const { return std::ssize(first_pieces_) - 1; }
  std::int64_t pieces(std::int64_t sequence) const;
  PackedPiece piece(std::int64_t sequence, std::int64_t index) const;
  const PackingCounts& counts() const { return counts_; }
  // Returns a hash of all pieces.
  std::uint64_t hash() const;

 private:
  struct OpenSequence {
    std::int64_t room = 0;  // rows
    std::vector<PackedPiece> pieces;
  };

  // The mask of a document: whether some targets are not trained on, and how many are trained on,
  // of all targets and of the first sequence_length.
  struct DocumentMask {
    bool has_gaps = false;
    std::int64_t trained = 0;
    std::int64_t trained_first = 0;
  };

  DocumentMask look_at_mask(std::int64_t begin, std::int64_t end) const;
  void add_document(std::int64_t begin, std::int64_t end);
  void place(const PackedPiece& piece);
  void close(std::size_t open);

  const TokenSource& source_;
  PackingOptions options_;
  PackingCounts counts_;
  std::vector<OpenSequence> open_;
  std::vector<std::int64_t> begins_;
  std::vector<std::int32_t> rows_;
  std::vector<std::int64_t> first_pieces_ = {0};  // of each sequence, and the number of all pieces
};

}  // namespace terrace
