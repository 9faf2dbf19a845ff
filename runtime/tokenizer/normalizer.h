#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "runtime/tokenizer/unicode_classes.h"

namespace terrace {

// Changes a text before it is cut. Thread-safe.
class Normalizer {
 public:
  virtual ~Normalizer() = default;

  // Appends the normalised form of the text, which is valid UTF-8.
  virtual void append(std::string_view text, std::string& out) const = 0;
  // Returns whether a text may be normalised in two parts, of which the second begins with a letter
  // after the end of a line.
  virtual bool works_by_line() const = 0;
  // Returns whether it brings text into form C, so that ids spell another text than the one that
  // was given.
  virtual bool composes() const = 0;
};

// Makes Unicode's normalisation form C. Borrows `classes`.
std::unique_ptr<Normalizer> make_nfc_normalizer(const UnicodeClasses& classes);
// Puts `prefix` before a text that is not empty.
std::unique_ptr<Normalizer> make_prepend_normalizer(std::string prefix);
// Puts `content` in the place of each `pattern`, which is not empty, from left to right.
std::unique_ptr<Normalizer> make_replace_normalizer(std::string pattern, std::string content);

}  // namespace terrace
