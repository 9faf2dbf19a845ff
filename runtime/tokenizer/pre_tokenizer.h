#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/function_ref.h"
#include "runtime/tokenizer/piece_scanner.h"
#include "runtime/tokenizer/unicode_classes.h"

namespace terrace {

// A piece of a text that is valid UTF-8. No token crosses its ends.
struct TextPiece {
  std::string_view text;     // not empty
  bool begins_text = false;  // nothing stood before it in the whole text
};

// The most pieces that a TakePieces is given at a time.
inline constexpr std::size_t kPiecesOfBatch = 16;
using TakePieces = FunctionRef<void(std::span<const TextPiece>)>;

// A step that cuts pieces into smaller ones. Thread-safe.
class PreTokenizer {
 public:
  virtual ~PreTokenizer() = default;

  // Calls `take` with the pieces in their order, with one or several at a time. They are valid only
  // during the call.
  virtual void cut(const TextPiece& piece, TakePieces take) const = 0;
};

// How a pattern's matches and the gaps between them become pieces: SplitDelimiterBehavior of
// `tokenizers`.
enum class SplitBehavior : std::uint8_t {
  kIsolated,            // each is a piece
  kRemoved,             // gaps are pieces, matches are left out
  kMergedWithPrevious,  // a match belongs to the gap before it
  kMergedWithNext,      // a match belongs to the gap after it
  kContiguous,          // matches without a gap between them are one piece
};

// Finds the matches of a pattern. Thread-safe.
class PatternFinder {
 public:
  virtual ~PatternFinder() = default;

  struct Span {
    std::size_t begin = 0;
    std::size_t end = 0;
  };
  // Calls `take` with all matches from left to right. They do not overlap; one may be empty.
  virtual void find_all(std::string_view text, FunctionRef<void(Span)> take) const = 0;
};

// Makes a finder for matches of `literal`, which is not empty.
std::unique_ptr<PatternFinder> make_literal_finder(std::string literal);

// Makes a step that splits by a pattern. If `inverted`, the gaps count as matches, and the matches
// as gaps.
std::unique_ptr<PreTokenizer> make_split(std::unique_ptr<PatternFinder> pattern,
                                         SplitBehavior behavior, bool inverted);
std::unique_ptr<PreTokenizer> make_scanner_split(std::unique_ptr<PieceScanner> scanner);
// Makes a step that cuts digits off: each by itself, or runs of them. Borrows `classes`.
std::unique_ptr<PreTokenizer> make_digits_split(const UnicodeClasses& classes, bool individual);
// Makes a step that puts a space before a piece that does not begin with one.
std::unique_ptr<PreTokenizer> make_space_prefix();

enum class PrependScheme : std::uint8_t { kAlways, kFirst, kNever };

// SentencePiece's way of cutting. Spaces become `replacement`, which is also put before texts, and
// which begins a piece if `split` is set.
struct MetaspaceOptions {
  std::string replacement;  // one code point
  PrependScheme prepend = PrependScheme::kAlways;
  bool split = true;
};
std::unique_ptr<PreTokenizer> make_metaspace(const MetaspaceOptions& options);

}  // namespace terrace
