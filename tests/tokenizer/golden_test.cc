#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "base/error.h"
#include "runtime/tokenizer/load_tokenizer.h"
#include "runtime/tokenizer/utf8.h"

// Compares ids and decoded texts with the files that tests/tokenizer/make_golden.py wrote.
namespace terrace {
namespace {

namespace fs = std::filesystem;

struct GoldenText {
  std::string text;
  std::vector<std::int32_t> ids;
  std::string decoded;
  bool is_lossless = false;  // `decoded` has all bytes
};

std::string from_hex(const std::string& hex) {
  std::string bytes;
  for (std::size_t i = 0; i + 1 < hex.size(); i += 2) {
    bytes += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
  }
  return bytes;
}

std::vector<GoldenText> read_cases(const fs::path& path) {
  std::vector<GoldenText> cases;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    std::istringstream fields(line);
    std::string text;
    std::string ids;
    std::string decoded;
    std::getline(fields, text, '\t');
    std::getline(fields, ids, '\t');
    std::getline(fields, decoded);
    GoldenText read{from_hex(text), {}, from_hex(decoded == "=" ? text : decoded), decoded != "-"};
    std::istringstream numbers(ids);
    for (std::int32_t id = 0; numbers >> id;) read.ids.push_back(id);
    cases.push_back(std::move(read));
  }
  return cases;
}

class TokenizerGolden : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    const fs::path folder = fs::path(TERRACE_TOKENIZER_GOLDEN) / GetParam();
    SilentLog log;
    tokenizer_ = load_tokenizer(folder.string(), log);
    cases_ = read_cases(folder / "cases.txt");
    ASSERT_GT(cases_.size(), 200U);
  }

  std::unique_ptr<Tokenizer> tokenizer_;
  std::vector<GoldenText> cases_;
};

TEST_P(TokenizerGolden, HasTheIdsOfThePackage) {
  for (const GoldenText& golden : cases_) {
    std::vector<std::int32_t> ids;
    tokenizer_->encode(golden.text, ids);
    ASSERT_EQ(ids, golden.ids) << testing::PrintToString(golden.text);
  }
}

// The parts of the ids cover the text from front to back.
TEST_P(TokenizerGolden, KnowsWhereIdsStand) {
  std::size_t known = 0;
  for (const GoldenText& golden : cases_) {
    if (valid_utf8_prefix(golden.text) < golden.text.size()) continue;
    std::vector<std::int32_t> ids;
    std::vector<std::size_t> ends;
    try {
      tokenizer_->encode_with_ends(golden.text, ids, ends);
    } catch (const ConfigError&) {  // a pre-tokenizer has dropped text
      continue;
    }
    ++known;
    ASSERT_EQ(ids, golden.ids) << testing::PrintToString(golden.text);
    ASSERT_EQ(ends.size(), ids.size());
    ASSERT_TRUE(std::ranges::is_sorted(ends));
    if (!ids.empty()) {
      ASSERT_EQ(ends.back(), golden.text.size());
    }
  }
  EXPECT_GT(known, cases_.size() / 2);
}

TEST_P(TokenizerGolden, HasTheIdsWhenPiecesAreKnownAlready) {
  std::vector<std::int32_t> ids;
  for (int round = 0; round < 2; ++round) {
    for (const GoldenText& golden : cases_) {
      ids.clear();
      tokenizer_->encode(golden.text, ids);
      ASSERT_EQ(ids, golden.ids) << testing::PrintToString(golden.text);
    }
  }
}

TEST_P(TokenizerGolden, DecodesAsThePackage) {
  int compared = 0;
  for (const GoldenText& golden : cases_) {
    if (!golden.is_lossless) continue;
    ASSERT_EQ(tokenizer_->decode(golden.ids), golden.decoded)
        << testing::PrintToString(golden.text);
    ++compared;
  }
  EXPECT_GT(compared, 100);
}

TEST_P(TokenizerGolden, HasTheSameIdsWhereverATextIsCut) {
  std::string text;
  for (const GoldenText& golden : cases_) text += golden.text + "\nline\n" + golden.text;
  std::vector<std::int32_t> whole;
  tokenizer_->encode(text, whole);
  std::vector<std::int32_t> parts;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t cut = tokenizer_->find_cut(text, at + 100);
    ASSERT_GT(cut, at);
    tokenizer_->encode(std::string_view(text).substr(at, cut - at), parts);
    at = cut;
  }
  EXPECT_EQ(parts, whole);
}

// CR LF ends lines behind letters, digits, other signs, white space and empty lines.
TEST_P(TokenizerGolden, HasTheSameIdsWhereverLinesOfCrLfAreCut) {
  std::string text;
  for (const GoldenText& golden : cases_) {
    for (const char* end : {"\r\n", "\r\nline", "7\r\nline", "!\r\n\xC3\xA9", " \r\n\r\na"}) {
      text += golden.text + end;
    }
  }
  std::vector<std::int32_t> whole;
  tokenizer_->encode(text, whole);
  std::vector<std::int32_t> parts;
  int cuts_at_crlf = 0;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t cut = tokenizer_->find_cut(text, at + 1);
    ASSERT_GT(cut, at);
    const std::string_view part = std::string_view(text).substr(at, cut - at);
    if (cut < text.size() && part.ends_with("\r\n")) ++cuts_at_crlf;
    tokenizer_->encode(part, parts);
    at = cut;
  }
  EXPECT_EQ(parts, whole);
  const std::string_view name = GetParam();
  if (name == "llama3" || name == "qwen2") {
    EXPECT_GT(cuts_at_crlf, 100);
  }
}

INSTANTIATE_TEST_SUITE_P(Tokenizers, TokenizerGolden,
                         testing::Values("gpt2", "llama3", "qwen2", "digits", "prefixed",
                                         "sentencepiece", "llama2", "metaspace_first",
                                         "metaspace_always", "unknowns", "gemma"),
                         [](const auto& case_of) { return std::string(case_of.param); });

}  // namespace
}  // namespace terrace
