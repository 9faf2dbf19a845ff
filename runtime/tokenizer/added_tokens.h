#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/function_ref.h"
#include "runtime/tokenizer/unicode_classes.h"

namespace terrace {

// A token beside the model's vocabulary that stands in texts as it is.
struct AddedToken {
  std::string content;  // not empty
  std::int32_t id = 0;
  bool single_word = false;  // only where no letter, digit or underscore touches it
  bool lstrip = false;       // with the white space before it
  bool rstrip = false;       // with the white space after it
  bool normalized = false;   // looked for in text that is normalised already
  bool is_special = false;   // marks a beginning, an end or the like, and is no text
};

// Finds added tokens in a text. At the leftmost place where one begins it takes the longest that
// begins there, as `tokenizers` does (AddedVocabulary::find_matches). Thread-safe.
class AddedTokenFinder {
 public:
  // Borrows `classes`. If two tokens have the same content, the first counts.
  AddedTokenFinder(std::vector<AddedToken> tokens, const UnicodeClasses& classes);

  struct Part {
    std::string_view text;    // not empty
    std::size_t begin = 0;    // in the text that is cut
    std::int32_t id = kText;  // or the id of the token that the part stands for
  };
  static constexpr std::int32_t kText = -1;

  // Calls `take` with the parts of the text in their order.
  void cut(std::string_view text, FunctionRef<void(const Part&)> take) const;

  bool empty() const { return tokens_.empty(); }
  const std::vector<AddedToken>& tokens() const { return tokens_; }

 private:
  static constexpr std::int32_t kNone = -1;
  struct Node {
    std::int32_t token = kNone;  // the one whose content ends here
    std::vector<std::pair<unsigned char, std::int32_t>> next;
  };
  struct Match {
    std::size_t begin = 0;
    const AddedToken* token = nullptr;  // null: none
  };

  void add(const std::string& content, std::int32_t token);
  std::int32_t child(std::int32_t node, unsigned char byte) const;
  Match find(std::string_view text, std::size_t from) const;
  std::size_t next_first_byte(std::string_view text, std::size_t from) const;
  const AddedToken* longest_at(std::string_view text, std::size_t at) const;
  bool is_single_word(std::string_view text, std::size_t begin, std::size_t end) const;
  std::size_t before_spaces(std::string_view text, std::size_t end) const;
  std::size_t behind_spaces(std::string_view text, std::size_t begin) const;

  std::vector<AddedToken> tokens_;
  std::vector<Node> nodes_;
  std::vector<bool> is_first_byte_;
  std::string first_bytes_;
  const UnicodeClasses& classes_;
};

}  // namespace terrace
