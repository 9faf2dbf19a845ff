#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "runtime/tokenizer/tokenizer.h"

// The tokens at the beginning and at the end of a document. A text may have them already, for
// example where a chat template has written them: they are not added a second time.
namespace terrace {

// Appends the ids of `text`, which begins a document, after the tokenizer's begin token if there is
// one. If the ids of the text begin with this token themselves, it is there only once. Returns the
// index of the first id after the begin token.
std::size_t encode_beginning(const Tokenizer& tokenizer, std::string_view text,
                             std::vector<std::int32_t>& ids);

// Appends the tokenizer's end token, if there is one, to a document. If the ids of the document's
// last text, which begin at `text_begin`, already end with this token, nothing is appended.
void append_end(const Tokenizer& tokenizer, std::size_t text_begin, std::vector<std::int32_t>& ids);

}  // namespace terrace
