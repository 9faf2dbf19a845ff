#include <gtest/gtest.h>
#include <zlib.h>
#include <zstd.h>

#include <chrono>
#include <random>
#include <string>
#include <vector>

#include "base/error.h"
#include "runtime/data/json_document.h"
#include "runtime/data/scratch_tokens.h"
#include "runtime/data/text_lines.h"
#include "runtime/tokenizer/utf8.h"
#include "tests/runtime/temporary_directory.h"

// JSONL files, compressed or not, as documents and as token files.
namespace terrace {
namespace {

std::string gzipped(const std::string& text) {
  z_stream state = {};
  EXPECT_EQ(deflateInit2(&state, 6, Z_DEFLATED, 16 + MAX_WBITS, 8, Z_DEFAULT_STRATEGY), Z_OK);
  std::string out(deflateBound(&state, text.size()) + 64, '\0');
  state.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  state.avail_in = static_cast<uInt>(text.size());
  state.next_out = reinterpret_cast<Bytef*>(out.data());
  state.avail_out = static_cast<uInt>(out.size());
  EXPECT_EQ(deflate(&state, Z_FINISH), Z_STREAM_END);
  out.resize(state.total_out);
  deflateEnd(&state);
  return out;
}

std::string zstandard(const std::string& text) {
  std::string out(ZSTD_compressBound(text.size()), '\0');
  ZSTD_CCtx* const context = ZSTD_createCCtx();
  ZSTD_CCtx_setParameter(context, ZSTD_c_checksumFlag, 1);  // as the program zstd does
  out.resize(ZSTD_compress2(context, out.data(), out.size(), text.data(), text.size()));
  ZSTD_freeCCtx(context);
  return out;
}

std::vector<std::string> lines_of(const std::string& path) {
  TextLines lines(path);
  std::vector<std::string> found;
  while (const auto line = lines.next()) found.emplace_back(*line);
  return found;
}

// Returns the message of the error that a call throws, and its remedy.
template <typename E, typename Call>
std::string message_of(Call call) {
  try {
    call();
  } catch (const E& error) {
    return std::string(error.what()) + " | " + error.remedy();
  } catch (const std::exception& other) {
    ADD_FAILURE() << "another error: " << other.what();
    return "";
  }
  ADD_FAILURE() << "nothing is thrown";
  return "";
}

#define EXPECT_SAYS(text, part) EXPECT_NE((text).find(part), std::string::npos) << (text)

// --- lines --------------------------------------------------------------------------------------

TEST(TextLines, AreThoseOfPlainAndCompressedFiles) {
  const TemporaryDirectory directory;
  std::vector<std::string> wanted = {"one", "", "zw\xc3\xb6lf", std::string(300'000, 'x'), "last"};
  std::string text;
  for (const std::string& line : wanted) text += line + "\n";
  text.pop_back();  // the last line needs no end
  const std::string first = text.substr(0, 200);
  const std::string second = text.substr(200);
  directory.write("plain", text);
  directory.write("marked", "\xef\xbb\xbf" + text);
  directory.write("gzip", gzipped(text));
  directory.write("members", gzipped(first) + gzipped(second));
  directory.write("zstd", zstandard(text));
  directory.write("frames", zstandard(first) + zstandard(second));
  for (const char* name : {"plain", "marked", "gzip", "members", "zstd", "frames"}) {
    EXPECT_EQ(lines_of(directory.path(name)), wanted) << name;
  }
  directory.write("empty", "");
  EXPECT_TRUE(lines_of(directory.path("empty")).empty());
}

TEST(TextLines, DamagedFilesAreNamed) {
  const TemporaryDirectory directory;
  std::mt19937 random(1);
  std::string text;
  while (text.size() < 100'000) text += static_cast<char>('a' + random() % 26);
  for (const std::string& whole : {gzipped(text), zstandard(text)}) {
    directory.write("short", whole.substr(0, whole.size() - 6));
    EXPECT_SAYS(message_of<CorruptData>([&] { lines_of(directory.path("short")); }), "short: ");
    std::string damaged = whole;
    damaged[whole.size() / 2] ^= 0x55;
    damaged[whole.size() / 2 + 1] ^= 0x55;
    directory.write("damaged", damaged);
    EXPECT_SAYS(message_of<CorruptData>([&] { lines_of(directory.path("damaged")); }), "damaged: ");
  }
}

TEST(TextLines, WhatIsNoUtf8IsRefusedWithItsOffset) {
  const TemporaryDirectory directory;
  directory.write("latin", "good\nna\xefve\n");
  const std::string message = message_of<CorruptData>([&] { lines_of(directory.path("latin")); });
  EXPECT_SAYS(message, "latin:2: byte 0xef at offset 7");
  EXPECT_SAYS(message, "iconv");
}

TEST(TextLines, Utf8IsThatOfTheStandard) {
  for (const char* good :
       {"", "a", "\xc2\x80", "\xe0\xa0\x80", "\xed\x9f\xbf", "\xf4\x8f\xbf\xbf"}) {
    EXPECT_EQ(valid_utf8_prefix(good), std::string_view(good).size()) << good;
  }
  // These are an encoding too long for its character, surrogates, a code point too large, a
  // sequence cut off, and a byte that may only follow another.
  for (const char* bad : {"a\xc0\x80", "a\xe0\x9f\xbf", "a\xed\xa0\x80", "a\xf4\x90\x80\x80",
                          "a\xf0\x9f\x98", "a\x80", "a\xff"}) {
    EXPECT_EQ(valid_utf8_prefix(bad), 1U) << bad;
  }
}

TEST(TextLines, HaveALongestLength) {
  const TemporaryDirectory directory;
  const std::string most(TextLines::kLongestLine, 'x');
  directory.write("most", most + "\n");
  EXPECT_EQ(lines_of(directory.path("most")), std::vector<std::string>{most});
  directory.write("more", "short\n" + most + "x\n");
  EXPECT_SAYS(message_of<CorruptData>([&] { lines_of(directory.path("more")); }), "more:2: ");
}

// --- documents ----------------------------------------------------------------------------------

JsonDocument parse(const std::string& line) {
  return parse_json_document(line, "data.jsonl:7", 300);
}

TEST(JsonDocument, ComesInThreeForms) {
  const JsonDocument text = parse(R"({"text": "a\u00e9", "id": 3})");
  EXPECT_EQ(text.kind, JsonDocument::Kind::kText);
  EXPECT_EQ(text.text, "a\xc3\xa9");
  const JsonDocument prompt = parse(R"({"completion": "c", "prompt": "p"})");
  EXPECT_EQ(prompt.kind, JsonDocument::Kind::kPrompt);
  EXPECT_EQ(prompt.prompt + prompt.text, "pc");
  const JsonDocument ids = parse(R"({"input_ids": [1, 299, 0], "loss_mask": [0, true, 1]})");
  EXPECT_EQ(ids.kind, JsonDocument::Kind::kIds);
  EXPECT_EQ(ids.ids, (std::vector<std::int32_t>{1, 299, 0}));
  EXPECT_EQ(ids.mask, (std::vector<std::uint8_t>{0, 1, 1}));
  EXPECT_TRUE(parse(R"({"input_ids": [1]})").mask.empty());
  const char* const both = R"({"input_ids": [1, 2], "labels": [-100, 2], "loss_mask": [0, 1]})";
  EXPECT_EQ(parse(both).mask, (std::vector<std::uint8_t>{0, 1}));
}

struct Refused {
  const char* line;
  const char* says;
};

TEST(JsonDocument, WhatIsWrongIsNamedWithItsKey) {
  for (const auto& [line, says] : std::initializer_list<Refused>{
           {R"({"messages": []})", "key \"messages\""},
           {R"({"prompt": [{"role": "user"}], "completion": "x"})",
            "key \"prompt[0].content\" is missing"},
           {R"({"prompt": "x"})", "key \"completion\" is missing"},
           {R"({"completion": "x"})", "key \"prompt\" is missing"},
           {R"({"text": 5})", "key \"text\" is a number"},
           {R"({"Text": "x"})", "its keys are \"Text\"; did you mean \"text\"?"},
           {R"({"mesages": []})", "did you mean \"messages\"?"},
           {R"({"a": 1, "b": 2})", "its keys are \"a\", \"b\"; give each line"},
           {R"({"text": "x", "input_ids": []})", "more than one"},
           {R"({"text": "x", "loss_mask": [1]})", "key \"loss_mask\" is only valid with"},
           {R"({"input_ids": [1, 300]})", "key \"input_ids\" has 300 at 1"},
           {R"({"input_ids": [-1]})", "key \"input_ids\" has -1 at 0"},
           {R"({"input_ids": [1.5]})", "key \"input_ids\" has 1.5 at 0"},
           {R"({"input_ids": [99999999999999999999]})", "key \"input_ids\" has 1e+20 at 0"},
           {R"({"input_ids": [1, 2], "loss_mask": [1]})", "has 1 numbers, but \"input_ids\" has 2"},
           {R"({"input_ids": [1], "loss_mask": [2]})", "key \"loss_mask\" has 2 at 0"},
       }) {
    const std::string message = message_of<ConfigError>([&, l = line] { parse(l); });
    EXPECT_SAYS(message, "data.jsonl:7: ");
    EXPECT_SAYS(message, says);
  }
}

TEST(JsonDocument, WhatIsNoObjectIsToldWithThePlaceInTheLine) {
  for (const auto& [line, says] : std::initializer_list<Refused>{
           {"", "column 1: "},
           {"{", "column 2: "},
           {"[1]", "it is of type array"},
           {"\"text\"", "it is of type string"},
           {R"({"text": "x"} 5)", "column 15: "},
           {R"({"text": NaN})", "column 10: syntax error while parsing value - invalid literal"},
           {R"({"text": "\ud800"})",
            "column 17: syntax error while parsing value - invalid string"},
           {R"({"id": 1e999})", "number overflow"},
       }) {
    const std::string message = message_of<CorruptData>([&, l = line] { parse(l); });
    EXPECT_SAYS(message, "data.jsonl:7: not a JSON object: ");
    EXPECT_SAYS(message, says);
  }
  // The message does not show the line, however long it is.
  const std::string cut =
      message_of<CorruptData>([&] { parse("{\"text\": \"" + std::string(100'000, 'x')); });
  EXPECT_LT(cut.size(), 500U);
}

// --- tokens -------------------------------------------------------------------------------------

// A tokenizer whose ids are bytes, with an end token like the tokenizers of models.
class EndingTokenizer final : public Tokenizer {
 public:
  std::int64_t vocabulary() const override { return 257; }
  void encode(std::string_view text, std::vector<std::int32_t>& ids) const override {
    bytes_->encode(text, ids);
  }
  void encode_with_ends(std::string_view text, std::vector<std::int32_t>& ids,
                        std::vector<std::size_t>& ends) const override {
    bytes_->encode_with_ends(text, ids, ends);
  }
  std::vector<std::string> special_texts() const override { return {}; }
  std::string decode(std::span<const std::int32_t> ids) const override {
    return bytes_->decode(ids);
  }
  std::optional<std::int32_t> begin_token() const override { return std::nullopt; }
  std::optional<std::int32_t> end_token() const override { return 256; }

 private:
  std::unique_ptr<Tokenizer> bytes_ = make_bytes_tokenizer();
};

TEST(ScratchTokens, HaveIdsMasksAndEndsOfDocuments) {
  const TemporaryDirectory directory;
  directory.write("a.jsonl", "{\"text\": \"ab\"}\n\n{\"prompt\": \"p\", \"completion\": \"cd\"}\n");
  directory.write("b.jsonl.gz", gzipped("{\"input_ids\": [5, 6, 7], \"loss_mask\": [1, 0, 1]}\n"));
  const EndingTokenizer tokenizer;
  for (const std::int64_t vocabulary : {300, 70'000}) {
    ScratchTokenizing tokenizing(
        {.files = {directory.path("a.jsonl"), directory.path("b.jsonl.gz")},
         .is_jsonl = true,
         .text = {tokenizer},
         .vocabulary = vocabulary});
    int calls = 1;
    while (tokenizing.advance(std::chrono::steady_clock::time_point())) ++calls;
    EXPECT_EQ(calls, 3);  // one for each file, and the end
    EXPECT_EQ(tokenizing.done_bytes(), tokenizing.total_bytes());
    const TokenizedData data = tokenizing.take();
    EXPECT_EQ(data.width, vocabulary > 65536 ? 4 : 2);
    const TokenFiles files({data.token_file()}, vocabulary);
    ASSERT_EQ(files.count(), 10);
    std::vector<std::int32_t> ids(10);
    std::vector<std::uint8_t> mask(10);
    files.read(0, ids);
    files.read_mask(0, mask);
    EXPECT_EQ(ids, (std::vector<std::int32_t>{'a', 'b', 256, 'p', 'c', 'd', 256, 5, 6, 7}));
    EXPECT_EQ(mask, (std::vector<std::uint8_t>{1, 1, 1, 0, 1, 1, 1, 1, 0, 1}));
    std::vector<std::int64_t> ends;
    files.visit_documents([&](std::int64_t end) { ends.push_back(end); });
    EXPECT_EQ(ends, (std::vector<std::int64_t>{3, 7, 10}));
    EXPECT_TRUE(files.has_mask());
    EXPECT_FALSE(files.is_text());
  }
}

TEST(ScratchTokens, NeedAVocabularyAndADocument) {
  const TemporaryDirectory directory;
  directory.write("empty.jsonl", "\n \r\n");
  const EndingTokenizer tokenizer;
  EXPECT_SAYS(message_of<ConfigError>([&] {
                ScratchTokenizing({.files = {directory.path("empty.jsonl")},
                                   .is_jsonl = true,
                                   .text = {tokenizer},
                                   .vocabulary = 256});
              }),
              "has 257 ids, but the model's vocabulary has only 256");
  ScratchTokenizing tokenizing({.files = {directory.path("empty.jsonl")},
                                .is_jsonl = true,
                                .text = {tokenizer},
                                .vocabulary = 300});
  while (tokenizing.advance({})) {
  }
  EXPECT_SAYS(message_of<ConfigError>([&] { tokenizing.take(); }), "no line has a document");
}

// Nothing is left in the directory, and another object can read what one has written.
TEST(ScratchFile, HasNoName) {
  const TemporaryDirectory directory;
  const char* const before = std::getenv("TMPDIR");
  const std::string kept = before == nullptr ? "" : before;
  ::setenv("TMPDIR", directory.path().c_str(), 1);
  ScratchFile file;
  before == nullptr ? ::unsetenv("TMPDIR") : ::setenv("TMPDIR", kept.c_str(), 1);
  EXPECT_TRUE(std::filesystem::is_empty(directory.path()));
  const std::string text = "what is written";
  file.write(std::as_bytes(std::span(text)));
  file.flush();
  const ScratchFile same(file.path());
  EXPECT_EQ(lines_of(same.path()), std::vector<std::string>{text});
}

}  // namespace
}  // namespace terrace
