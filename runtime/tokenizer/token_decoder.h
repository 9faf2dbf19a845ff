#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace terrace {

// How the texts of tokens become a text again.
struct TokenDecoding {
  bool byte_level = false;                                    // code points stand for bytes
  bool byte_fallback = false;                                 // "<0x0A>" is a byte
  std::vector<std::pair<std::string, std::string>> replaces;  // in each token, in this order
  // Removed from the beginning of the whole text, at most strip_count times.
  std::string strip;
  std::int64_t strip_count = 0;
  // Removed from the first token, wherever it stands in it; empty: nothing is removed.
  std::string first_token_drops;
};

// The bytes of each id. Thread-safe.
class TokenDecoder {
 public:
  explicit TokenDecoder(TokenDecoding options) : options_(std::move(options)) {}

  // Gives an id its token. `is_verbatim`: an added one, whose text stands in texts as it is.
  void add(std::int32_t id, const std::string& token, bool is_verbatim);

  // Returns a number that all ids are below.
  std::int64_t vocabulary() const { return static_cast<std::int64_t>(texts_.size()); }

  // Returns the text that an id stands for within a text. The id is below the vocabulary.
  const std::string& text_of(std::int32_t id) const {
    return texts_[static_cast<std::size_t>(id)].bytes;
  }
  // Returns the text of ids. An id without a token has no text. Throws ConfigError for an id that
  // is not below the vocabulary.
  std::string decode(std::span<const std::int32_t> ids) const;

 private:
  struct Text {
    std::string bytes;
    std::string token;  // kept where the first token is decoded differently
  };
  std::string bytes_of(const std::string& token) const;

  TokenDecoding options_;
  std::vector<Text> texts_;
};

}  // namespace terrace
