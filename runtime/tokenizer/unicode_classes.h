#pragma once

#include <cstdint>
#include <vector>

namespace terrace {

// The classes of a code point in Hugging Face's `tokenizers`, of the version that unicode_tables.cc
// names. They are measured there (by tools/make_unicode_tables.py), because its regular
// expressions, Rust's own tables and its normaliser are of three versions of Unicode.
enum class CodePointClass : std::uint8_t {
  kLetter = 1,       // \p{L} of patterns
  kNumber = 2,       // \p{N} of patterns
  kSpace = 4,        // \s of patterns; White_Space of added tokens, too
  kNumeric = 8,      // a digit to the pre-tokenizer Digits
  kWord = 16,        // \w to added tokens that stand for single words
  kNfcSpecial = 32,  // NFC may change it, or reorder it, or join it to what stands before it
  kMark = 64,        // its canonical combining class is not 0
};

// The classes of all code points: 1.1 MB, made from ranges. Thread-safe.
class UnicodeClasses {
 public:
  UnicodeClasses();

  // Returns the bits of CodePointClass. `code_point` is at most U+10FFFF.
  std::uint8_t of(char32_t code_point) const { return classes_[code_point]; }
  bool is(char32_t code_point, CodePointClass kind) const {
    return (of(code_point) & static_cast<std::uint8_t>(kind)) != 0;
  }

 private:
  std::vector<std::uint8_t> classes_;
};

}  // namespace terrace
