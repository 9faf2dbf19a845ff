#include "runtime/data/document_ids.h"
#include "tests/fuzz/fuzz_input.h"

// Reads a line of JSON, and makes its ids from its bytes.
int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace terrace;
  static const auto tokenizer = make_bytes_tokenizer();
  fuzz::may_refuse([&] {
    const JsonDocument document = parse_json_document(fuzz::text_of(data, size), "line:1", 1000);
    DocumentIds ids;
    add_document(document, {.tokenizer = *tokenizer, .is_bytes = true}, ids);
    fuzz::expect(!ids.has_mask || ids.mask.size() == ids.ids.size(), "a mask is of all ids");
    fuzz::expect(ids.ends.size() == 1 && ids.ends.front() == ids.ids.size(), "it is a document");
    for (const std::int32_t id : ids.ids) fuzz::expect(id >= 0 && id < 1000, "ids are below 1000");
  });
  return 0;
}
