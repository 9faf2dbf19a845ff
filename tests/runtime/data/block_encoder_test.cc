#include "runtime/data/block_encoder.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "base/error.h"

namespace terrace {
namespace {

TextBlock block_of(std::string text) {
  TextBlock block;
  block.text = std::move(text);
  return block;
}

// Returns an encoding whose ids are bytes. It refuses a text that begins with "no".
EncodeBlock fussy_encoding() {
  return [](const TextBlock& block, DocumentIds& documents) {
    if (block.text.starts_with("no")) throw ConfigError("no text", "");
    for (const char c : block.text) documents.ids.push_back(static_cast<unsigned char>(c));
  };
}

TEST(BlockEncoder, BlocksComeOutInTheirOrder) {
  BlockEncoder encoder(fussy_encoding(), 3);
  int put = 0;
  for (int taken = 0; taken < 200; ++taken) {
    while (!encoder.is_full()) {
      encoder.put(block_of(fmt::format("block {}", put)));
      ++put;
    }
    const BlockEncoder::Encoded encoded = encoder.take();
    const std::string text = fmt::format("block {}", taken);
    EXPECT_EQ(std::string(encoded.documents.ids.begin(), encoded.documents.ids.end()), text);
    EXPECT_EQ(encoded.text_bytes, text.size());
  }
}

TEST(BlockEncoder, AFailureComesWithItsBlock) {
  BlockEncoder encoder(fussy_encoding(), 2);
  encoder.put(block_of("a"));
  encoder.put(block_of("no b"));
  encoder.put(block_of("c"));
  EXPECT_EQ(encoder.take().documents.ids.size(), 1U);
  EXPECT_THROW(encoder.take(), ConfigError);
  EXPECT_EQ(encoder.take().documents.ids.size(), 1U);
  EXPECT_TRUE(encoder.is_empty());
}

TEST(BlockEncoder, EndsWithBlocksInside) {
  BlockEncoder encoder(fussy_encoding(), 2);
  while (!encoder.is_full()) encoder.put(block_of(std::string(100'000, 'x')));
}

}  // namespace
}  // namespace terrace
