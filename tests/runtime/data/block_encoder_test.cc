#include "runtime/data/block_encoder.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "base/error.h"

namespace terrace {
namespace {

TextBlock block_of(std::string text) {
  return {.text = std::move(text), .ends_document = true, .end = {}};
}

// Ids are bytes; refuses a text that begins with "no".
class FussyTokenizer final : public Tokenizer {
 public:
  std::int64_t vocabulary() const override { return 256; }
  void encode(std::string_view text, std::vector<std::int32_t>& ids) const override {
    if (text.starts_with("no")) throw ConfigError("no text", "");
    for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
  }
  std::string decode(std::span<const std::int32_t>) const override { return ""; }
  std::optional<std::int32_t> begin_token() const override { return std::nullopt; }
  std::optional<std::int32_t> end_token() const override { return std::nullopt; }
};

TEST(BlockEncoder, BlocksComeOutInTheirOrder) {
  const FussyTokenizer tokenizer;
  BlockEncoder encoder(tokenizer, 3);
  int put = 0;
  for (int taken = 0; taken < 200; ++taken) {
    while (!encoder.is_full()) {
      encoder.put(block_of(fmt::format("block {}", put)));
      ++put;
    }
    const BlockEncoder::Encoded encoded = encoder.take();
    const std::string text = fmt::format("block {}", taken);
    EXPECT_EQ(std::string(encoded.ids.begin(), encoded.ids.end()), text);
    EXPECT_EQ(encoded.text_bytes, text.size());
  }
}

TEST(BlockEncoder, AFailureComesWithItsBlock) {
  const FussyTokenizer tokenizer;
  BlockEncoder encoder(tokenizer, 2);
  encoder.put(block_of("a"));
  encoder.put(block_of("no b"));
  encoder.put(block_of("c"));
  EXPECT_EQ(encoder.take().ids.size(), 1U);
  EXPECT_THROW(encoder.take(), ConfigError);
  EXPECT_EQ(encoder.take().ids.size(), 1U);
  EXPECT_TRUE(encoder.is_empty());
}

TEST(BlockEncoder, EndsWithBlocksInside) {
  const FussyTokenizer tokenizer;
  BlockEncoder encoder(tokenizer, 2);
  while (!encoder.is_full()) encoder.put(block_of(std::string(100'000, 'x')));
}

}  // namespace
}  // namespace terrace
