#include <cstring>

#include "runtime/data/document_index.h"
#include "tests/fuzz/fuzz_input.h"

// Reads FILE.idx of a token file that has as many tokens as the last eight bytes of the index say.
int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace terrace;
  static const fuzz::Folder folder;
  const std::string path = folder.write("ids.u16.idx", fuzz::text_of(data, size));
  std::int64_t tokens = 0;  // a number that a file may have: not below 0
  if (size >= sizeof(tokens)) std::memcpy(&tokens, data + size - sizeof(tokens), sizeof(tokens));
  if (tokens < 0) return 0;
  fuzz::may_refuse([&] {
    const DocumentIndex index = open_ends(path, tokens);
    std::int64_t before = 0;
    visit_ends(index, tokens, [&](std::int64_t end) {
      fuzz::expect(end >= before && end <= tokens, "documents end one behind the other");
      before = end;
    });
  });
  return 0;
}
