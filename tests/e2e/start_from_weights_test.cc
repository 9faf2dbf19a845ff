#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <limits>

#include "tests/e2e/tiny_training.h"

// Runs that start from the weights of a Hugging Face directory.
namespace terrace {
namespace {

using testing::HasSubstr;
using testing::Not;

class StartFromWeights : public testing::Test {
 protected:
  StartFromWeights() { training_.train("first", {"--max-steps", "1", "--precision", "fp32"}); }

  Arguments command(const std::string& run = "run") const {
    return training_.command(run, {"--max-steps", "1", "--model", training_.path("first/final")});
  }

  const TinyTraining training_;
};

TEST_F(StartFromWeights, OfBytesIsNothingToWarnOf) {
  const Outcome outcome = run_program(command());
  EXPECT_EQ(outcome.code, 0) << outcome;
  EXPECT_THAT(outcome.output, HasSubstr("starts from the weights in"));
  EXPECT_EQ(outcome.errors, "");
}

// Bytes are other ids than those that the weights were trained with.
TEST_F(StartFromWeights, WithATokenizerOfTheirOwnWarnsOfText) {
  training_.directory().write("first/final/tokenizer.json", "{}");
  const Outcome outcome = run_program(command());
  EXPECT_EQ(outcome.code, 0) << outcome;
  EXPECT_THAT(outcome.errors, HasSubstr("tokenizer.json"));
  EXPECT_THAT(outcome.errors, HasSubstr("--data-format llmc"));
  const Outcome sampled = run_program({"sample", "--model", training_.path("first/final"),
                                       "--prompt", "a", "--max-new-tokens", "1"});
  EXPECT_EQ(sampled.code, 0) << sampled;
  EXPECT_THAT(sampled.errors, HasSubstr("tokenizer.json"));
  const std::string tokens = training_.directory().write("ids.u16", std::string(20'000, '\0'));
  const Outcome of_ids =
      run_program(command("of_ids") + Arguments{"--data", tokens, "--data-format", "raw-u16"});
  EXPECT_EQ(of_ids.code, 0) << of_ids;
  EXPECT_THAT(of_ids.errors, Not(HasSubstr("tokenizer.json")));
  EXPECT_FALSE(training_.directory().has("run/final/tokenizer.json"));
  EXPECT_EQ(training_.directory().read("of_ids/final/tokenizer.json"), "{}");
}

// The run goes on without what only its users need.
TEST_F(StartFromWeights, WithATokenizerThatCannotBeReadSaysSo) {
  std::filesystem::create_directory(training_.path("first/final/merges.txt"));
  const std::string tokens = training_.directory().write("ids.u16", std::string(20'000, '\0'));
  const Outcome outcome =
      run_program(command() + Arguments{"--data", tokens, "--data-format", "raw-u16"});
  EXPECT_EQ(outcome.code, 0) << outcome;
  EXPECT_THAT(outcome.errors, HasSubstr("merges.txt"));
  EXPECT_TRUE(training_.directory().has("run/final/config.json"));
}

TEST_F(StartFromWeights, WithDropoutSaysThatThereIsNone) {
  std::string config = training_.directory().read("first/final/config.json");
  config.insert(config.find('{') + 1, "\"attention_dropout\": 0.25,");
  training_.directory().write("first/final/config.json", config);
  const Outcome outcome = run_program(command());
  EXPECT_EQ(outcome.code, 0) << outcome;
  EXPECT_THAT(outcome.errors, HasSubstr("attention_dropout 0.25: nothing is dropped"));
}

// Else the first step would, with advice about the learning rate.
TEST_F(StartFromWeights, ThatAreNotFiniteIs5AndNamesTheTensor) {
  std::string bytes = training_.directory().read("first/final/model.safetensors");
  const float infinite = std::numeric_limits<float>::infinity();
  std::memcpy(bytes.data() + bytes.size() - sizeof(infinite), &infinite, sizeof(infinite));
  training_.directory().write("first/final/model.safetensors", bytes);
  const Outcome outcome = run_program(command());
  EXPECT_EQ(outcome.code, 5) << outcome;
  EXPECT_THAT(outcome.errors, HasSubstr("model.norm.weight"));
  EXPECT_THAT(outcome.errors, HasSubstr("not finite"));
}

}  // namespace
}  // namespace terrace
