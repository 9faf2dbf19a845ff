#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "runtime/tokenizer/load_tokenizer.h"
#include "tests/runtime/temporary_directory.h"

namespace terrace {
namespace {

// Byte-level BPE whose vocabulary has all bytes, "he" and " w", with form C before it.
std::string byte_level_json() {
  std::string vocabulary;
  int id = 0;
  const auto add = [&](const std::string& token) {
    vocabulary += fmt::format("{}\"{}\": {}", id == 0 ? "" : ", ", token, id);
    ++id;
  };
  int extra = 256;
  for (int byte = 0; byte < 256; ++byte) {
    const bool is_shown =
        (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
    add(fmt::format("\\u{:04x}", is_shown ? byte : extra++));
  }
  add("he");
  add("\\u0120w");
  return R"({"version": "1.0", "truncation": null, "padding": null, "added_tokens": [
      {"id": 258, "content": "<end>", "single_word": false, "lstrip": false, "rstrip": false,
       "normalized": false, "special": true},
      {"id": 259, "content": "<wide>", "single_word": false, "lstrip": true, "rstrip": true,
       "normalized": true, "special": false}],
    "normalizer": {"type": "NFC"},
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false,
                      "trim_offsets": true, "use_regex": true},
    "post_processor": null, "decoder": {"type": "ByteLevel"},
    "model": {"type": "BPE", "vocab": {)" +
         vocabulary + R"(}, "merges": ["h e", "\u0120 w"]}})";
}

// SentencePiece's kind of BPE as a tokenizer.json: a mark before each text, and bytes for what is
// not in the vocabulary.
std::string mark_json() {
  std::string vocabulary = R"("<unk>": 0)";
  int id = 1;
  for (int byte = 0; byte < 256; ++byte) {
    vocabulary += fmt::format(R"(, "<0x{:02X}>": {})", byte, id++);
  }
  for (const char* const token : {"\\u2581", "h", "i", "\\u2581h", "\\u2581hi", "\\u2581\\u2581"}) {
    vocabulary += fmt::format(R"(, "{}": {})", token, id++);
  }
  return R"({"version": "1.0", "truncation": null, "padding": null, "added_tokens": [
      {"id": 263, "content": "</s>", "single_word": false, "lstrip": false, "rstrip": false,
       "normalized": false, "special": true}],
    "normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "\u2581"},
      {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}]},
    "pre_tokenizer": null, "post_processor": null,
    "decoder": {"type": "Sequence", "decoders": [
      {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "},
      {"type": "ByteFallback"}, {"type": "Fuse"},
      {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
    "model": {"type": "BPE", "unk_token": "<unk>", "fuse_unk": true,
              "byte_fallback": true, "vocab": {)" +
         vocabulary + R"(}, "merges": ["\u2581 h", "\u2581h i", "\u2581 \u2581"]}})";
}

class EncodeWithEnds : public testing::Test {
 protected:
  void load(const std::string& json) {
    tokenizer_ = load_tokenizer(directory_.write("tokenizer.json", json), log_);
  }

  // Returns the parts of the text, with a bar behind each. The ids are those of encode().
  std::string parts(const std::string& text) {
    std::vector<std::int32_t> ids;
    std::vector<std::size_t> ends;
    tokenizer_->encode_with_ends(text, ids, ends);
    std::vector<std::int32_t> plain;
    tokenizer_->encode(text, plain);
    EXPECT_EQ(ids, plain);
    EXPECT_EQ(ids.size(), ends.size());
    std::string cut;
    std::size_t begin = 0;
    for (const std::size_t end : ends) {
      cut += text.substr(begin, end - begin) + "|";
      begin = end;
    }
    EXPECT_EQ(begin, text.size());
    return cut;
  }

  TemporaryDirectory directory_;
  SilentLog log_;
  std::unique_ptr<Tokenizer> tokenizer_;
};

TEST_F(EncodeWithEnds, CutsTextsByTheBytesOfIds) {
  load(byte_level_json());
  EXPECT_EQ(parts("hello we"), "he|l|l|o| w|e|");
  EXPECT_EQ(parts("he<end>he"), "he|<end>|he|");
  EXPECT_EQ(tokenizer_->special_texts(), std::vector<std::string>{"<end>"});
}

// An added token takes the spaces beside it.
TEST_F(EncodeWithEnds, GivesSpacesToTheTokenThatTakesThem) {
  load(byte_level_json());
  EXPECT_EQ(parts("h  <wide>  he"), "h|  <wide>  |he|");
}

// "e" and the accent behind it become one letter of two bytes. Both ids have the part that it comes
// from, the second with nothing left of it.
TEST_F(EncodeWithEnds, GivesComposedLettersThePartThatTheyComeFrom) {
  load(byte_level_json());
  EXPECT_EQ(parts("he\u0301w"), "h|e\u0301||w|");
  EXPECT_EQ(parts("\u00e9"), "\xC3|\xA9|");
}

TEST_F(EncodeWithEnds, LeavesOutTheSpaceThatIsPutBeforeATexts) {
  load(mark_json());
  EXPECT_EQ(parts("hi"), "hi|");
  EXPECT_EQ(parts(" hi hi"), "| hi| hi|");
  EXPECT_EQ(parts("hi</s>hi"), "hi|</s>|hi|");
  EXPECT_EQ(parts("h\u00e9"), "h|\xC3|\xA9|");
  EXPECT_EQ(parts("hi\u2581hi"), "hi|\u2581hi|");
}

TEST_F(EncodeWithEnds, CutsBytes) {
  tokenizer_ = make_bytes_tokenizer();
  EXPECT_EQ(parts("ab"), "a|b|");
}

}  // namespace
}  // namespace terrace
