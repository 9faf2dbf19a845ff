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
  // Taken from the beginning of the whole text, so often at most.
  std::string strip;
  std::int64_t strip_count = 0;
  // Left out of the first token, wherever it stands there; empty: nothing.
  std::string first_token_drops;
};

// The bytes of each id. Thread-safe.
class TokenDecoder {
 public:
  explicit TokenDecoder(TokenDecoding options) : options_(std::move(options)) {}

  // Gives an id its token. `is_verbatim`: an added one, whose text stands in texts as it is.
  void add(std::int32_t id, const std::string& token, bool is_verbatim);

  // All ids are below it.
  std::int64_t vocabulary() const { return static_cast<std::int64_t>(texts_.size()); }

  // Throws ConfigError for an id that is not below the vocabulary. One without a token has no text.
  std::string decode(std::span<const std::int32_t> ids) const;

 private:
  struct Text {
    std::string bytes;
    std::string token;  // kept where the first token is another
  };
  std::string bytes_of(const std::string& token) const;

  TokenDecoding options_;
  std::vector<Text> texts_;
};

}  // namespace terrace
