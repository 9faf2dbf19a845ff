#include "runtime/chat/conversation.h"
#include "runtime/data/document_ids.h"
#include "runtime/jinja/json_value.h"
#include "tests/fuzz/fuzz_input.h"

// Reads a line of JSON, and makes its ids from its bytes. Reads it as a conversation, too.
int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace terrace;
  static const auto tokenizer = make_bytes_tokenizer();
  fuzz::may_refuse([&] {
    const JsonDocument document = parse_json_document(fuzz::text_of(data, size), "line:1", 1000);
    DocumentIds ids;
    if (document.kind == JsonDocument::Kind::kConversation) return;  // it needs a chat template
    add_document(document, {.tokenizer = *tokenizer, .is_bytes = true}, "line:1", ids);
    fuzz::expect(!ids.has_mask || ids.mask.size() == ids.ids.size(), "a mask is of all ids");
    fuzz::expect(ids.ends.size() == 1 && ids.ends.front() == ids.ids.size(), "it is a document");
    for (const std::int32_t id : ids.ids) fuzz::expect(id >= 0 && id < 1000, "ids are below 1000");
  });
  fuzz::may_refuse([&] {
    const jinja::Value row = jinja::parse_json_value(fuzz::text_of(data, size), "line:1");
    if (!row.is_mapping() || !is_conversation(row.mapping())) return;
    const Conversation conversation = read_conversation(row.mapping(), "line:1");
    fuzz::expect(conversation.trained.size() == conversation.messages.size(),
                 "each message is trained on or not");
  });
  return 0;
}
