#include "runtime/data/document_ids.h"

#include <fmt/format.h>

#include "base/error.h"
#include "runtime/tokenizer/document_tokens.h"

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
  const std::size_t first = to.ids.size();
  to.ids.insert(to.ids.end(), document.ids.begin(), document.ids.end());
  to.mask.insert(to.mask.end(), document.mask.begin(), document.mask.end());
  extend_mask(to, 1);
  for (const std::size_t end : document.ends) to.ends.push_back(first + end);
  if (document.ends.empty()) to.ends.push_back(to.ids.size());
}

void add_texts(const JsonDocument& document, const TextTokens& text, DocumentIds& to) {
  const bool has_prompt = document.kind == JsonDocument::Kind::kPrompt;
  to.has_text = true;
  std::size_t text_begin = 0;
  if (has_prompt) {
    ++to.prompts;
    begin_mask(to);
    encode_beginning(text.tokenizer, document.prompt, to.ids);
    extend_mask(to, 0);
    text_begin = to.ids.size();
    text.tokenizer.encode(document.text, to.ids);
  } else {
    text_begin = encode_beginning(text.tokenizer, document.text, to.ids);
  }
  if (text.appends_end) append_end(text.tokenizer, text_begin, to.ids);
  extend_mask(to, 1);
  to.ends.push_back(to.ids.size());
}

void add_conversation(const Conversation& conversation, const TextTokens& text,
                      const std::string& place, DocumentIds& to) {
  if (text.conversations == nullptr) {
    throw ConfigError(
        fmt::format("{}: a conversation, but there is no chat template to render it", place),
        "name a tokenizer of the model's directory, or --chat-template");
  }
  const ConversationEncoder::Encoded encoded = text.conversations->encode(conversation, place);
  to.has_text = true;
  ++to.conversations;
  begin_mask(to);
  to.ids.insert(to.ids.end(), encoded.ids.begin(), encoded.ids.end());
  to.mask.insert(to.mask.end(), encoded.mask.begin(), encoded.mask.end());
  to.ends.push_back(to.ids.size());
}

}  // namespace

void add_document(const JsonDocument& document, const TextTokens& text, const std::string& place,
                  DocumentIds& to) {
  if (document.kind == JsonDocument::Kind::kConversation) {
    add_conversation(*document.conversation, text, place, to);
  } else if (document.kind == JsonDocument::Kind::kIds) {
    add_ids(document, to);
  } else {
    add_texts(document, text, to);
  }
}

}  // namespace terrace
