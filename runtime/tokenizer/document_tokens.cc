#include "runtime/tokenizer/document_tokens.h"

#include <optional>

namespace terrace {

std::size_t encode_beginning(const Tokenizer& tokenizer, std::string_view text,
                             std::vector<std::int32_t>& ids) {
  const std::optional<std::int32_t> begin = tokenizer.begin_token();
  if (begin) ids.push_back(*begin);
  const std::size_t first = ids.size();
  tokenizer.encode(text, ids);
  const bool is_doubled = begin && first < ids.size() && ids[first] == *begin;
  if (is_doubled) ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(first));
  return first;
}

void append_end(const Tokenizer& tokenizer, std::size_t text_begin,
                std::vector<std::int32_t>& ids) {
  const std::optional<std::int32_t> end = tokenizer.end_token();
  if (!end || (text_begin < ids.size() && ids.back() == *end)) return;
  ids.push_back(*end);
}

}  // namespace terrace
