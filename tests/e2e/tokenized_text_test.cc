#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/e2e/tiny_training.h"

// Text that becomes ids by a tokenizer, in a training or before it, by the program itself.
namespace terrace {
namespace {

using testing::HasSubstr;

const Arguments kFiveSteps = {"--max-steps", "5", "--checkpoint-every", "5"};

class TokenizedText : public testing::Test {
 protected:
  TokenizedText() {
    training_.directory().write("own/tokenizer.json", small_tokenizer());
    training_.directory().write("own/tokenizer_config.json", R"({"eos_token": "\n"})");
  }

  // Makes a token file of a file of the directory.
  std::string tokenize(const std::string& name) const {
    const std::string output = training_.path(name + ".u16");
    const Outcome outcome = run_program({"tokenize", "--tokenizer", training_.path("own"),
                                         "--output", output, training_.path(name)});
    EXPECT_EQ(outcome.code, 0) << outcome;
    return output;
  }

  // Samples with a prompt for which the small tokenizer has no token, but the tokenizer of bytes
  // has one.
  Outcome sample(const std::string& model) const {
    return run_program(
        {"sample", "--model", training_.path(model), "--prompt", "%", "--max-new-tokens", "2"});
  }

  void expect_small_tokenizer(const std::string& run) const {
    EXPECT_EQ(training_.directory().read(run + "/final/tokenizer.json"), small_tokenizer());
    for (const char* part : {"/final", "/checkpoint-5"}) {
      const Outcome sampled = sample(run + part);
      EXPECT_EQ(sampled.code, 2) << sampled;
      EXPECT_THAT(sampled.errors, HasSubstr("the tokenizer turns it into no tokens"));
    }
    const std::string exported = training_.path(run + "-exported");
    const Outcome outcome =
        run_program({"export", training_.path(run + "/checkpoint-5"), exported});
    EXPECT_EQ(outcome.code, 0) << outcome;
    EXPECT_EQ(training_.directory().read(run + "-exported/tokenizer.json"), small_tokenizer());
  }

  TinyTraining training_;
};

TEST_F(TokenizedText, HasTheRowsOfItsTokenFile) {
  training_.train("bytes", kFiveSteps);
  training_.train("named", kFiveSteps + Arguments{"--tokenizer", training_.path("own")});
  EXPECT_NE(training_.rows("named"), training_.rows("bytes"));
  expect_small_tokenizer("named");
  const std::string tokens = tokenize("text.txt");
  training_.train("of_ids", kFiveSteps + Arguments{"--data", tokens, "--data-format", "raw-u16"});
  EXPECT_EQ(training_.rows("named"), training_.rows("of_ids"));
  training_.train("ranks",
                  kFiveSteps + Arguments{"--tokenizer", training_.path("own"), "--local-ranks", "2",
                                         "--pipeline-parallel", "2"});
  training_.expect_same("ranks", "named", "final");
}

TEST_F(TokenizedText, TakesTheTokenizerOfTheModel) {
  training_.train("bytes", kFiveSteps);
  training_.train("named", kFiveSteps + Arguments{"--tokenizer", training_.path("own")});
  for (const char* name : {"tokenizer.json", "tokenizer_config.json"}) {
    std::filesystem::copy(training_.path(std::string("own/") + name), training_.path("model"));
  }
  training_.train("auto", kFiveSteps);
  EXPECT_EQ(training_.rows("auto"), training_.rows("named"));
  expect_small_tokenizer("auto");
  training_.train("still_bytes", kFiveSteps + Arguments{"--tokenizer", "bytes"});
  EXPECT_EQ(training_.rows("still_bytes"), training_.rows("bytes"));
  EXPECT_FALSE(training_.directory().has("still_bytes/final/tokenizer.json"));
  EXPECT_EQ(sample("still_bytes/checkpoint-5").code, 0);
}

TEST_F(TokenizedText, OfSeveralFilesIsADocumentEach) {
  training_.directory().write("texts/a.txt", generated_text(3'000, 1));
  training_.directory().write("texts/b.txt", generated_text(4'000, 2));
  const Arguments packed = kFiveSteps + Arguments{"--packing", "documents"};
  const Outcome text = training_.train(
      "text", packed + Arguments{"--data", training_.path("texts"), "--tokenizer",
                                 training_.path("own"), "--validation-fraction", "0"});
  EXPECT_THAT(text.output, HasSubstr("documents: 2 in "));
  training_.train("of_ids", packed + Arguments{"--data", tokenize("texts"), "--data-format",
                                               "raw-u16", "--validation-fraction", "0"});
  EXPECT_EQ(training_.rows("text"), training_.rows("of_ids"));
}

TEST_F(TokenizedText, OfPromptsAndCompletionsHasTheRowsOfItsTokenFile) {
  training_.directory().write("turns.jsonl",
                              "{\"prompt\": \"red tide ?\", \"completion\": \"tide red.\"}\n\n"
                              "{\"text\": \"rye and barley.\"}\n"
                              "{\"input_ids\": [5, 6, 7], \"loss_mask\": [0, 1, 1]}\n");
  const Arguments whole = kFiveSteps + Arguments{"--validation-fraction", "0"};
  training_.train("lines", whole + Arguments{"--data", training_.path("turns.jsonl"), "--tokenizer",
                                             training_.path("own")});
  const std::string tokens = tokenize("turns.jsonl");
  EXPECT_TRUE(training_.directory().has("turns.jsonl.u16.mask"));
  EXPECT_FALSE(training_.directory().has("turns.jsonl.u16.mask.partial"));
  training_.train("of_ids", whole + Arguments{"--data", tokens, "--packing", "documents"});
  EXPECT_EQ(training_.rows("lines"), training_.rows("of_ids"));
  training_.train("windows", whole + Arguments{"--data", tokens, "--sequence-length", "8"});
  EXPECT_NE(training_.rows("windows"), training_.rows("of_ids"));
}

TEST_F(TokenizedText, RefusesWhatItCannotUse) {
  const Outcome absent = run_program(
      training_.command("run", kFiveSteps + Arguments{"--tokenizer", training_.path("none")}));
  EXPECT_EQ(absent.code, 2) << absent;
  EXPECT_THAT(absent.errors, HasSubstr("none"));
  training_.directory().write("zeros.txt", std::string("a\0b", 3));
  const Outcome zeros = run_program(training_.command(
      "run", kFiveSteps + Arguments{"--tokenizer", training_.path("own"), "--data-format", "text",
                                    "--data", training_.path("zeros.txt")}));
  EXPECT_EQ(zeros.code, 2) << zeros;
  EXPECT_THAT(zeros.errors, HasSubstr("zero bytes"));
  training_.directory().write("bad.jsonl", "{\"text\": \"good\"}\n{\"text\": 1}\n");
  const Outcome bad = run_program({"tokenize", "--tokenizer", "bytes", "--output",
                                   training_.path("bad.u16"), training_.path("bad.jsonl")});
  EXPECT_EQ(bad.code, 2) << bad;
  EXPECT_THAT(bad.errors, HasSubstr("bad.jsonl:2: key \"text\""));
  EXPECT_FALSE(training_.directory().has("bad.u16"));
  EXPECT_FALSE(training_.directory().has("run"));
}

}  // namespace
}  // namespace terrace
