#include "runtime/data/megatron_index.h"
#include "tests/fuzz/fuzz_input.h"

// Reads Megatron's P.idx beside a P.bin of 64 bytes.
int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace terrace;
  static const fuzz::Folder folder;
  static const std::string ids = folder.write("p.bin", std::string(64, '\1'));
  const std::string index = folder.write("p.idx", fuzz::text_of(data, size));
  fuzz::may_refuse([&] {
    if (!has_megatron_index(ids)) return;
    const TokenFile file = open_megatron(ids);
    fuzz::expect(file.tokens * file.width <= 64, "no more ids than the file has");
    std::int64_t before = 0;
    visit_megatron_ends(index, [&](std::int64_t end) {
      fuzz::expect(end >= before && end <= file.tokens, "documents end one behind the other");
      before = end;
    });
  });
  return 0;
}
