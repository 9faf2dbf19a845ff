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

// A piece of a text that is valid UTF-8. Tokens never go over its ends.
struct TextPiece {
  std::string_view text;     // not empty
  bool begins_text = false;  // nothing stood before it in the whole text
};

// What takes pieces takes at most so many at a time.
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

// What becomes of a pattern's matches and of the gaps between them: SplitDelimiterBehavior of
// `tokenizers`.
enum class SplitBehavior : std::uint8_t {
  kIsolated,            // each is a piece
  kRemoved,             // gaps are pieces, matches are left out
  kMergedWithPrevious,  // a match belongs to the gap before it
  kMergedWithNext,      // a match belongs to the gap behind it
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

// Matches of `literal`, which is not empty.
std::unique_ptr<PatternFinder> make_literal_finder(std::string literal);

// `inverted`: the gaps count as matches, and the matches as gaps.
std::unique_ptr<PreTokenizer> make_split(std::unique_ptr<PatternFinder> pattern,
                                         SplitBehavior behavior, bool inverted);
std::unique_ptr<PreTokenizer> make_scanner_split(std::unique_ptr<PieceScanner> scanner);
// Cuts digits off: each by itself, or runs of them. `classes` stays the caller's.
std::unique_ptr<PreTokenizer> make_digits_split(const UnicodeClasses& classes, bool individual);
// Puts a space before a piece that does not begin with one.
std::unique_ptr<PreTokenizer> make_space_prefix();

enum class PrependScheme : std::uint8_t { kAlways, kFirst, kNever };

// SentencePiece's way: spaces become `replacement`, which is also put before texts, and begins a
// piece where `split` is set.
struct MetaspaceOptions {
  std::string replacement;  // one code point
  PrependScheme prepend = PrependScheme::kAlways;
  bool split = true;
};
std::unique_ptr<PreTokenizer> make_metaspace(const MetaspaceOptions& options);

}  // namespace terrace
