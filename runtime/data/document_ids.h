#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/chat/conversation_encoder.h"
#include "runtime/data/json_document.h"
#include "runtime/tokenizer/tokenizer.h"

namespace terrace {

// Ids of documents, or of a part of one, one after the other.
struct DocumentIds {
  std::vector<std::int32_t> ids;
  bool has_mask = false;           // some document says what is trained on
  std::vector<std::uint8_t> mask;  // of each id, 1: trained on; empty without has_mask
  std::vector<std::size_t> ends;   // for each document that ends here: how many ids are before
  bool has_text = false;           // some ids come from text
  std::int64_t conversations = 0;  // of the documents
  std::int64_t prompts = 0;        // of the documents: with a completion

  std::uint8_t mask_of(std::size_t index) const { return has_mask ? mask[index] : 1; }
};

// How text becomes ids.
struct TextTokens {
  const Tokenizer& tokenizer;
  bool is_bytes = false;    // the ids are the text's bytes
  bool appends_end = true;  // the end token after each document, where the tokenizer has one
  // Turns conversations into ids; null where they are refused.
  const ConversationEncoder* conversations = nullptr;
};

// Adds a document of JSON lines. One with a prompt has the tokens of the prompt and of the
// completion, each tokenized by itself, as the prompt is when it is sampled from. Each document has
// the tokenizer's tokens for the beginning and the end, if there are any; a text that has them
// already does not get them twice. A document that comes as ids does not get them.
//
// A conversation has the ids and the mask that its chat template gives it. `place` says where the
// document is. Throws as ConversationEncoder.
void add_document(const JsonDocument& document, const TextTokens& text, const std::string& place,
                  DocumentIds& to);

}  // namespace terrace
