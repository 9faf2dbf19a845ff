#include "tests/fuzz/tokenizer_fuzz.h"

#include <array>
#include <string_view>
#include <vector>

#include "runtime/tokenizer/load_tokenizer.h"
#include "tests/fuzz/fuzz_input.h"

namespace terrace::fuzz {
namespace {

constexpr auto kTexts = std::to_array<std::string_view>(
    {"", "a", "the tide turns, it's 12345  twice\r\n\n a day", "\xc3\xa9\xe6\x97\xa5\xff\xf0\x9f",
     "<s><|im_start|>user\n</s>", "\t \xc2\xa0 "});

}  // namespace

void use_tokenizer(const std::string& path) {
  may_refuse([&] {
    SilentLog log;
    const auto tokenizer = load_tokenizer(path, log);
    for (const std::string_view text : kTexts) {
      std::vector<std::int32_t> ids;
      tokenizer->encode(text, ids);
      for (const std::int32_t id : ids) {
        expect(id >= 0 && id < tokenizer->vocabulary(), "ids are below the vocabulary");
      }
      tokenizer->decode(ids);
      tokenizer->find_cut(text, 0);
    }
    if (tokenizer->end_token()) {
      expect(*tokenizer->end_token() < tokenizer->vocabulary(), "the end is below the vocabulary");
    }
  });
}

}  // namespace terrace::fuzz
