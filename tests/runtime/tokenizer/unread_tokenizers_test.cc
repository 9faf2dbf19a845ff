#include "runtime/tokenizer/unread_tokenizers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "base/error.h"
#include "runtime/tokenizer/choose_tokenizer.h"
#include "runtime/tokenizer/load_tokenizer.h"
#include "tests/runtime/temporary_directory.h"

// Tokenizers that are there and cannot be read. None of them may end as bytes.
namespace terrace {
namespace {

using testing::HasSubstr;

class UnreadTokenizers : public testing::Test {
 protected:
  std::string refusal(const std::string& choice = "auto") {
    try {
      choose_tokenizer(choice, directory_.path(), log_);
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "no error";
  }

  const TemporaryDirectory directory_;
  SilentLog log_;
};

TEST_F(UnreadTokenizers, AreRefusedByNameAndBytesMustBeAskedFor) {
  directory_.write("config.json", "{}");
  EXPECT_EQ(refusal(), "no error");  // no tokenizer at all: bytes
  for (const char* name :
       {"vocab.json", "vocab.txt", "spiece.model", "sentencepiece.bpe.model", "qwen.tiktoken",
        "tekken.json", "tokenizer.model.v3", "source.spm", "tokenizer_config.json"}) {
    directory_.write(name, "{}");
    const std::string error = refusal();
    EXPECT_THAT(error, HasSubstr(directory_.path() + ": its tokenizer cannot be read"));
    EXPECT_THAT(error, HasSubstr(std::string("but there is ") + name));
    EXPECT_THAT(error, HasSubstr("AutoTokenizer"));
    EXPECT_THAT(error, HasSubstr("--tokenizer bytes"));
    EXPECT_EQ(refusal("bytes"), "no error") << name;
    EXPECT_THAT(refusal(directory_.path()), HasSubstr(name));
    std::filesystem::remove(directory_.path(name));
  }
  directory_.write("merges.txt", "a b");
  directory_.write("vocab.json", "{}");
  EXPECT_THAT(refusal(), HasSubstr("there is merges.txt, vocab.json"));
}

TEST_F(UnreadTokenizers, LinksToNothingAreNotBytes) {
  std::filesystem::create_symlink("../../blobs/12ab", directory_.path("tokenizer.json"));
  EXPECT_THAT(refusal(),
              HasSubstr("tokenizer.json (a link to ../../blobs/12ab, which does not exist)"));
}

TEST_F(UnreadTokenizers, FilesAreRefusedByTheirNames) {
  for (const char* name : {"vocab.json", "tekken.json", "qwen.tiktoken", "vocab.txt"}) {
    EXPECT_THAT(refusal(directory_.write(name, "{}")),
                HasSubstr(std::string(name) + ": this form of a tokenizer is not read"));
  }
}

TEST_F(UnreadTokenizers, AModelOfTiktokenIsNoDamagedSentencePieceModel) {
  directory_.write("tokenizer.model", "IQ== 0\nIg== 1\nIw== 2\n");
  EXPECT_THAT(refusal(), HasSubstr("tokenizer.model: a tokenizer in tiktoken's form"));
}

}  // namespace
}  // namespace terrace
