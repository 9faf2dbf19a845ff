#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "runtime/tokenizer/added_tokens.h"
#include "runtime/tokenizer/bpe_model.h"
#include "runtime/tokenizer/json_node.h"
#include "runtime/tokenizer/normalizer.h"
#include "runtime/tokenizer/pre_tokenizer.h"
#include "runtime/tokenizer/token_decoder.h"

// Functions that read the parts of a tokenizer.json. All throw ConfigError for a component or a key
// that is not built, naming it, and CorruptData for values that cannot be.
namespace terrace {

std::vector<std::unique_ptr<Normalizer>> read_normalizers(const JsonNode& node,
                                                          const UnicodeClasses& classes);

struct PreTokenizerSteps {
  std::vector<std::unique_ptr<PreTokenizer>> steps;
  bool byte_level = false;  // pieces are bytes to the model
  // Whether the text may be cut before a letter that follows a single end of a line. It may if the
  // steps on either side of such a place do not depend on the text on the other side.
  bool cuts_at_lines = false;
  bool keeps_crlf = false;  // the same for a line that ends in CR LF
  // Patterns that PCRE2 matches, with some classes of its own version of Unicode.
  std::vector<std::string> unknown_patterns;
};
PreTokenizerSteps read_pre_tokenizers(const JsonNode& node, const UnicodeClasses& classes);

// A model's vocabulary by the texts of its tokens, as the file has them.
using Vocabulary = std::unordered_map<std::string, std::int32_t>;

struct ReadModel {
  BpeOptions bpe;
  Vocabulary vocabulary;
};
ReadModel read_model(const JsonNode& node, bool byte_level);

// Returns the tokens in the order in which `tokenizers` looks for them: special ones first.
std::vector<AddedToken> read_added_tokens(const JsonNode& node, const Vocabulary& vocabulary);

// The tokens that stand around a text.
struct AroundText {
  std::optional<std::int32_t> begin;
  std::optional<std::int32_t> end;
};
AroundText read_post_processor(const JsonNode& node);

TokenDecoding read_decoder(const JsonNode& node);

}  // namespace terrace
