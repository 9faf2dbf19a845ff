#pragma once

#include <cstddef>
#include <memory>
#include <string_view>

#include "runtime/tokenizer/unicode_classes.h"

namespace terrace {

// Cuts a text into the matches of one of the patterns that are known, which cover it without gaps.
// Thread-safe.
class PieceScanner {
 public:
  virtual ~PieceScanner() = default;

  // Returns where the piece that begins at `at` ends. `at` is inside the text, which is valid
  // UTF-8, and a piece before it ends there or the text begins.
  virtual std::size_t end_of_piece(std::string_view text, std::size_t at) const = 0;
  // Returns whether CR LF, after no white space and before a letter, is a piece or the end of one,
  // so that a text may be cut after it.
  virtual bool keeps_crlf() const = 0;
};

// Returns the pattern of GPT-2, which the pre-tokenizer ByteLevel has of its own.
std::string_view gpt2_pattern();
std::string_view llama3_pattern();
std::string_view qwen2_pattern();

// Returns the scanner for a pattern, compared by its text; null for one that is not known. Borrows
// `classes`.
std::unique_ptr<PieceScanner> make_piece_scanner(std::string_view pattern,
                                                 const UnicodeClasses& classes);

}  // namespace terrace
