#include "runtime/data/document_ids.h"

#include <optional>

namespace terrace {
namespace {

// Gives `byte` to the ids that have no byte of the mask yet, where there is a mask.
void extend_mask(DocumentIds& to, std::uint8_t byte) {
  if (to.has_mask) to.mask.resize(to.ids.size(), byte);
}

// Begins a mask, unless there is one. The ids so far are trained on.
void begin_mask(DocumentIds& to) {
  to.has_mask = true;
  extend_mask(to, 1);
}

void add_ids(const JsonDocument& document, DocumentIds& to) {
  if (!document.mask.empty()) begin_mask(to);
  to.ids.insert(to.ids.end(), document.ids.begin(), document.ids.end());
  to.mask.insert(to.mask.end(), document.mask.begin(), document.mask.end());
  extend_mask(to, 1);
}

void add_texts(const JsonDocument& document, const TextTokens& text, DocumentIds& to) {
  const bool has_prompt = document.kind == JsonDocument::Kind::kPrompt;
  to.has_text = true;
  if (has_prompt) begin_mask(to);
  const std::optional<std::int32_t> begin = text.tokenizer.begin_token();
  if (begin) to.ids.push_back(*begin);
  if (has_prompt) {
    text.tokenizer.encode(document.prompt, to.ids);
    extend_mask(to, 0);
  }
  text.tokenizer.encode(document.text, to.ids);
  const std::optional<std::int32_t> end = text.tokenizer.end_token();
  if (end && text.appends_end) to.ids.push_back(*end);
  extend_mask(to, 1);
}

}  // namespace

void add_document(const JsonDocument& document, const TextTokens& text, DocumentIds& to) {
  if (document.kind == JsonDocument::Kind::kIds) {
    add_ids(document, to);
  } else {
    add_texts(document, text, to);
  }
  to.ends.push_back(to.ids.size());
}

}  // namespace terrace
