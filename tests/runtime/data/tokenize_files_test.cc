#include "runtime/data/tokenize_files.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <random>

#include "base/error.h"
#include "runtime/tokenizer/load_tokenizer.h"
#include "tests/runtime/temporary_directory.h"

namespace terrace {
namespace {

// A tokenizer whose ids are bytes, with an end token at the end of its vocabulary. Texts may be cut
// behind a space.
class WordsTokenizer final : public Tokenizer {
 public:
  explicit WordsTokenizer(std::int64_t vocabulary) : vocabulary_(vocabulary) {}

  std::int64_t vocabulary() const override { return vocabulary_; }
  void encode(std::string_view text, std::vector<std::int32_t>& ids) const override {
    for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
  }
  void encode_with_ends(std::string_view text, std::vector<std::int32_t>& ids,
                        std::vector<std::size_t>& ends) const override {
    encode(text, ids);
    for (std::size_t end = 1; end <= text.size(); ++end) ends.push_back(end);
  }
  std::vector<std::string> special_texts() const override { return {}; }
  std::string decode(std::span<const std::int32_t>) const override { return ""; }
  std::optional<std::int32_t> begin_token() const override { return std::nullopt; }
  std::optional<std::int32_t> end_token() const override {
    return static_cast<std::int32_t>(vocabulary_ - 1);
  }

 private:
  std::int64_t vocabulary_;
};

class TokenizeFiles : public testing::Test {
 protected:
  std::string drawn_text(std::size_t lines, std::uint32_t seed) const {
    std::mt19937 draw(seed);
    std::string text;
    for (std::size_t i = 0; i < lines; ++i) {
      text += fmt::format("{} line{}  {}'s\n{}", i, draw() % 100, draw(), i % 7 == 0 ? "\n" : "");
      if (i % 50 == 0) text += "\xE4\xBD\xA0\xFF\n";
    }
    return text;
  }

  TokenizeRequest request_for(const std::vector<std::string>& files, int threads = 2) const {
    TokenizeRequest request;
    request.files = files;
    request.output = directory_.path("out");
    request.threads = threads;
    return request;
  }

  template <typename Number>
  std::vector<Number> numbers_in(const std::string& name) const {
    const std::string bytes = directory_.read(name);
    std::vector<Number> numbers(bytes.size() / sizeof(Number));
    std::memcpy(numbers.data(), bytes.data(), numbers.size() * sizeof(Number));
    return numbers;
  }

  static std::unique_ptr<Tokenizer> golden(const std::string& name) {
    SilentLog log;
    return load_tokenizer(std::string(TERRACE_TOKENIZER_GOLDEN) + "/" + name, log);
  }

  static constexpr auto kTellNobody = [](const TokenizeProgress&) {};

  TemporaryDirectory directory_;
};

TEST_F(TokenizeFiles, HasTheIdsOfWholeDocumentsAndTheirEnds) {
  std::vector<std::string> texts = {drawn_text(99, 2), "", "short", drawn_text(100'000, 1)};
  std::vector<std::string> files;
  for (std::size_t i = 0; i < texts.size(); ++i) {
    files.push_back(directory_.write(fmt::format("text{}", i), texts[i]));
  }
  ASSERT_GT(texts[3].size(), 2U << 20);  // several blocks
  for (const char* name : {"qwen2", "sentencepiece"}) {
    const auto tokenizer = golden(name);
    if (std::string_view(name) == "sentencepiece") {  // slow with long texts
      texts.pop_back();
      files.pop_back();
    }
    std::vector<std::uint16_t> expected;
    std::vector<std::uint64_t> ends;
    for (const std::string& text : texts) {
      std::vector<std::int32_t> ids;
      tokenizer->encode(text, ids);
      if (tokenizer->end_token()) ids.push_back(*tokenizer->end_token());
      expected.insert(expected.end(), ids.begin(), ids.end());
      ends.push_back(expected.size());
    }
    for (const int threads : {1, 3}) {
      const TokenizeResult result =
          tokenize_files(*tokenizer, request_for(files, threads), kTellNobody);
      EXPECT_EQ(result.done.tokens, expected.size());
      EXPECT_EQ(result.done.documents, texts.size());
      EXPECT_EQ(result.done.bytes, result.done.bytes_of_all);
      EXPECT_TRUE(numbers_in<std::uint16_t>("out") == expected) << name << threads;
      EXPECT_EQ(numbers_in<std::uint64_t>("out.idx"), ends);
    }
  }
}

TEST_F(TokenizeFiles, WritesWiderIdsFrom65536OnAndTheEndTokenIfAsked) {
  const std::vector<std::string> files = {directory_.write("a", "ab"), directory_.write("b", "c")};
  EXPECT_EQ(token_width(WordsTokenizer(65'535)), 2);
  EXPECT_EQ(token_width(WordsTokenizer(65'536)), 4);
  TokenizeRequest request = request_for(files);
  tokenize_files(WordsTokenizer(70'000), request, kTellNobody);
  EXPECT_EQ(numbers_in<std::uint32_t>("out"),
            (std::vector<std::uint32_t>{'a', 'b', 69'999, 'c', 69'999}));
  request.append_end = false;
  tokenize_files(WordsTokenizer(300), request, kTellNobody);
  EXPECT_EQ(numbers_in<std::uint16_t>("out"), (std::vector<std::uint16_t>{'a', 'b', 'c'}));
  EXPECT_EQ(numbers_in<std::uint64_t>("out.idx"), (std::vector<std::uint64_t>{2, 3}));
}

struct Interrupt {};

TEST_F(TokenizeFiles, GoesOnWithWhatAnInterruptedProcessHasLeft) {
  const auto tokenizer = golden("llama3");
  const std::vector<std::string> files = {directory_.write("a", drawn_text(90'000, 3)),
                                          directory_.write("b", drawn_text(60'000, 4))};
  TokenizeRequest request = request_for(files);
  tokenize_files(*tokenizer, request, kTellNobody);
  const std::string whole = directory_.read("out");
  const std::string ends = directory_.read("out.idx");
  std::filesystem::remove(directory_.path("out"));

  request.bytes_between_saves = 1;
  int blocks = 0;
  const auto interrupt = [&](const TokenizeProgress&) {
    if (++blocks == 2) throw Interrupt();
  };
  EXPECT_THROW(tokenize_files(*tokenizer, request, interrupt), Interrupt);
  EXPECT_FALSE(directory_.has("out"));
  // Bytes that were written after the last save do not count.
  directory_.write("out.partial", directory_.read("out.partial") + "xyz");
  blocks = 0;
  EXPECT_THROW(tokenize_files(*tokenizer, request, interrupt), Interrupt);
  const TokenizeResult result = tokenize_files(*tokenizer, request, kTellNobody);
  EXPECT_GT(result.resumed_bytes, 2U << 20);
  EXPECT_TRUE(directory_.read("out") == whole);
  EXPECT_TRUE(directory_.read("out.idx") == ends);
  EXPECT_FALSE(directory_.has("out.partial"));
  EXPECT_FALSE(directory_.has("out.state"));
}

TEST_F(TokenizeFiles, BeginsAnewWhereWhatIsThereIsOfOtherIds) {
  const auto tokenizer = golden("llama3");
  const std::vector<std::string> files = {directory_.write("a", drawn_text(90'000, 5))};
  TokenizeRequest request = request_for(files);
  request.bytes_between_saves = 1;
  const auto interrupted = [&] {
    EXPECT_THROW(
        tokenize_files(*tokenizer, request, [](const TokenizeProgress&) { throw Interrupt(); }),
        Interrupt);
  };
  interrupted();
  TokenizeRequest other = request;
  other.tokenizer_hash = 1;
  EXPECT_EQ(tokenize_files(*tokenizer, other, kTellNobody).resumed_bytes, 0U);
  interrupted();
  directory_.write("out.partial", "");  // shorter than the state says
  EXPECT_EQ(tokenize_files(*tokenizer, request, kTellNobody).resumed_bytes, 0U);
  interrupted();
  directory_.write("out.state", "terrace-tokens-1 1 2");
  EXPECT_EQ(tokenize_files(*tokenizer, request, kTellNobody).resumed_bytes, 0U);
  interrupted();
  EXPECT_GT(tokenize_files(*tokenizer, request, kTellNobody).resumed_bytes, 0U);
}

TEST_F(TokenizeFiles, BeginsAnewWithAnotherEndToken) {
  const std::vector<std::string> files = {directory_.write("a", drawn_text(90'000, 6)),
                                          directory_.write("b", drawn_text(90'000, 7))};
  TokenizeRequest request = request_for(files);
  request.bytes_between_saves = 1;
  int blocks = 0;
  const auto interrupt = [&](const TokenizeProgress& progress) {
    blocks += progress.documents > 0 ? 1 : 0;
    if (blocks == 1) throw Interrupt();
  };
  // WordsTokenizer takes its end token from the vocabulary.
  EXPECT_THROW(tokenize_files(WordsTokenizer(300), request, interrupt), Interrupt);
  const TokenizeResult other = tokenize_files(WordsTokenizer(301), request, kTellNobody);
  EXPECT_EQ(other.resumed_bytes, 0U);
  const std::vector<std::uint16_t> ids = numbers_in<std::uint16_t>("out");
  EXPECT_EQ(std::ranges::count(ids, 300), 2);
  EXPECT_EQ(std::ranges::count(ids, 299), 0);

  blocks = 0;
  EXPECT_THROW(tokenize_files(WordsTokenizer(300), request, interrupt), Interrupt);
  request.append_end = false;
  EXPECT_EQ(tokenize_files(WordsTokenizer(300), request, kTellNobody).resumed_bytes, 0U);
  EXPECT_THROW(tokenize_files(WordsTokenizer(300), request,
                              [](const TokenizeProgress&) { throw Interrupt(); }),
               Interrupt);
  // Without an end token it does not matter which one a tokenizer has.
  EXPECT_GT(tokenize_files(WordsTokenizer(301), request, kTellNobody).resumed_bytes, 0U);
}

TEST_F(TokenizeFiles, RefusesASecondWriterOfTheSameFiles) {
  const TokenizeRequest request = request_for({directory_.write("a", "ab")});
  const TokenizeRequest second = request_for({directory_.write("b", "xyz")});
  int tries = 0;
  tokenize_files(WordsTokenizer(300), request, [&](const TokenizeProgress&) {
    ++tries;
    TERRACE_EXPECT_THROW_WITH(tokenize_files(WordsTokenizer(300), second, kTellNobody), IoError,
                              directory_.path("out.partial"));
  });
  EXPECT_EQ(tries, 1);
  EXPECT_EQ(numbers_in<std::uint16_t>("out"), (std::vector<std::uint16_t>{'a', 'b', 299}));
  EXPECT_EQ(numbers_in<std::uint64_t>("out.idx"), (std::vector<std::uint64_t>{3}));
  tokenize_files(WordsTokenizer(300), second, kTellNobody);  // the first has ended
  EXPECT_EQ(numbers_in<std::uint16_t>("out"), (std::vector<std::uint16_t>{'x', 'y', 'z', 299}));
}

TEST_F(TokenizeFiles, RemovesTheMaskOfOtherIds) {
  const TokenizeRequest request = request_for({directory_.write("a", "ab")});
  directory_.write("out.mask", "m");
  const auto interrupt = [](const TokenizeProgress&) { throw Interrupt(); };
  EXPECT_THROW(tokenize_files(WordsTokenizer(300), request, interrupt), Interrupt);
  EXPECT_TRUE(directory_.has("out.mask"));  // the ids that it belongs to may still be there
  tokenize_files(WordsTokenizer(300), request, kTellNobody);
  EXPECT_FALSE(directory_.has("out.mask"));
  directory_.write("out.mask/x", "");  // cannot be removed
  TERRACE_EXPECT_THROW_WITH(tokenize_files(WordsTokenizer(300), request, kTellNobody), IoError,
                            "out.mask");
}

TEST_F(TokenizeFiles, OfJsonLinesHasMasksAndGoesOn) {
  std::string lines;
  std::vector<std::uint16_t> ids;
  std::vector<std::uint8_t> mask;
  for (int i = 0; i < 40'000; ++i) {
    const std::string prompt = fmt::format("question {}", i);
    lines += fmt::format("{{\"prompt\": \"{}\", \"completion\": \"no\"}}\n", prompt);
    ids.insert(ids.end(), prompt.begin(), prompt.end());
    mask.resize(ids.size(), 0);
    ids.insert(ids.end(), {'n', 'o', 299});
    mask.resize(ids.size(), 1);
  }
  const std::string plain = "{\"text\": \"ab\"}\n";
  TokenizeRequest request =
      request_for({directory_.write("a.jsonl", plain), directory_.write("b.jsonl", lines)});
  request.is_jsonl = true;
  request.bytes_between_saves = 1;
  ids.insert(ids.begin(), {'a', 'b', 299});
  mask.insert(mask.begin(), {1, 1, 1});
  int blocks = 0;
  const auto interrupt = [&](const TokenizeProgress&) {
    if (++blocks == 3) throw Interrupt();
  };
  const WordsTokenizer tokenizer(300);
  EXPECT_THROW(tokenize_files(tokenizer, request, interrupt), Interrupt);
  directory_.write("out.mask.partial", directory_.read("out.mask.partial") + "xyz");
  const TokenizeResult result = tokenize_files(tokenizer, request, kTellNobody);
  EXPECT_GT(result.resumed_bytes, 256U << 10);
  EXPECT_EQ(result.done.bytes, result.done.bytes_of_all);
  EXPECT_EQ(result.done.documents, 40'001U);
  EXPECT_EQ(result.trained_tokens, static_cast<std::uint64_t>(std::ranges::count(mask, 1)));
  EXPECT_TRUE(numbers_in<std::uint16_t>("out") == ids);
  EXPECT_TRUE(numbers_in<std::uint8_t>("out.mask") == mask);
  EXPECT_FALSE(directory_.has("out.mask.partial"));

  // These documents do not say what is trained on.
  TokenizeRequest texts = request_for({directory_.path("a.jsonl")});
  texts.is_jsonl = true;
  EXPECT_EQ(tokenize_files(tokenizer, texts, kTellNobody).trained_tokens, std::nullopt);
  EXPECT_FALSE(directory_.has("out.mask"));
  EXPECT_FALSE(directory_.has("out.mask.partial"));
  TokenizeRequest empty = request_for({directory_.write("empty.jsonl", " \n")});
  empty.is_jsonl = true;
  TERRACE_EXPECT_THROW_WITH(tokenize_files(tokenizer, empty, kTellNobody), ConfigError,
                            "empty.jsonl: no line has a document");
}

TEST_F(TokenizeFiles, RefusesWhatIsNoText) {
  const std::vector<std::string> files = {directory_.write("a", std::string("a\0b", 3))};
  TERRACE_EXPECT_THROW_WITH(
      tokenize_files(*make_bytes_tokenizer(), request_for(files), kTellNobody), ConfigError,
      "zero bytes");
  EXPECT_THROW(
      tokenize_files(*make_bytes_tokenizer(), request_for({directory_.path("none")}), kTellNobody),
      IoError);
}

}  // namespace
}  // namespace terrace
