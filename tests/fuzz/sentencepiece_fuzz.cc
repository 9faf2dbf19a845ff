#include "tests/fuzz/fuzz_input.h"
#include "tests/fuzz/tokenizer_fuzz.h"

// Reads a SentencePiece model.
int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace terrace;
  static const fuzz::Folder folder;
  fuzz::use_tokenizer(folder.write("tokenizer.model", fuzz::text_of(data, size)));
  return 0;
}
