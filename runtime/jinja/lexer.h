#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace terrace::jinja {

// A token of a template.
struct Token {
  enum class Kind : std::uint8_t {
    kData,        // text outside of tags, as it is printed
    kBlockBegin,  // {%
    kBlockEnd,
    kPrintBegin,  // {{
    kPrintEnd,
    kName,
    kText,  // a string literal, without quotation marks and escapes
    kInteger,
    kFloat,
    kOperator,
    kEnd,  // of the template
  };
  Kind kind = Kind::kEnd;
  std::string text;
  int line = 1;
};

// Cuts a template into tokens as the lexer of Jinja2 3.1 does with trim_blocks and lstrip_blocks,
// which transformers sets: the newline after a block is dropped, and so is the white space between
// the beginning of a line and a block. The source is valid UTF-8. Throws SyntaxError.
std::vector<Token> cut_tokens(std::string_view source);

}  // namespace terrace::jinja
