#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "tests/e2e/tiny_training.h"

// Token files with an id that the model does not have.
namespace terrace {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr std::size_t kTokens = 6000;

// Returns ids below 100 in two bytes each, except for number `bad`, which is 300.
std::string raw_tokens(std::size_t bad) {
  std::string bytes;
  for (std::size_t i = 0; i < kTokens; ++i) {
    const std::size_t id = i == bad ? 300 : i * i % 97;
    bytes += static_cast<char>(id % 256);
    bytes += static_cast<char>(id / 256);
  }
  return bytes;
}

class BadData : public testing::TestWithParam<const char*> {
 protected:
  Arguments with_tokens(std::size_t bad) const {
    return {"--data",
            training_.directory().write("tokens.u16", raw_tokens(bad)),
            "--data-format",
            "raw-u16",
            "--sequence-length",
            "16",
            "--local-ranks",
            GetParam()};
  }

  const TinyTraining training_;
};

// The id is found before it is needed, which would be after the last step.
TEST_P(BadData, InTheValidationSplitIsFoundBeforeTheFirstStep) {
  const Outcome outcome = run_program(
      training_.command("run", with_tokens(kTokens - 1) + Arguments{"--max-steps", "3"}));
  EXPECT_EQ(outcome.code, 2) << outcome;
  EXPECT_THAT(outcome.errors, HasSubstr("token 5999 has id 300"));
  EXPECT_THAT(outcome.output, Not(HasSubstr("\nstep ")));
}

TEST_P(BadData, InTheMiddleSavesTheStepsBefore) {
  const Arguments steps = {"--max-steps", "1000"};
  const Outcome outcome = run_program(training_.command("run", with_tokens(3000) + steps));
  EXPECT_EQ(outcome.code, 2) << outcome;
  EXPECT_THAT(outcome.errors, HasSubstr("token 3000 has id 300"));
  const std::vector<MetricsRow> rows = training_.rows("run");
  ASSERT_FALSE(rows.empty());
  const std::string saved = "run/checkpoint-" + std::to_string(rows.back().step);
  EXPECT_THAT(outcome.output, HasSubstr("saved " + training_.path(saved) + "\n"));

  // With the data mended, the run goes on as if nothing had happened.
  const std::string last = std::to_string(rows.back().step + 2);
  const Arguments mended = with_tokens(kTokens) + steps + Arguments{"--stop-after-step", last};
  training_.train("run", mended + Arguments{"--resume", "auto"});
  training_.train("alone", mended);
  training_.expect_same("run", "alone", "checkpoint-" + last);
}

// The steps that have been trained are kept when the evaluation after them cannot be done.
TEST_P(BadData, InAnEvaluationSavesTheStepsBefore) {
  const std::string held = training_.directory().write("held.txt", generated_text(20'000, 3));
  const Arguments run = {"--max-steps",   "1000000", "--validation-data",  held,
                         "--eval-every",  "1500",    "--checkpoint-every", "1500",
                         "--local-ranks", GetParam()};
  ProgramRun training(training_.command("run", run));
  ASSERT_TRUE(training.wait_for("\nstep ", 1)) << training.wait();
  std::filesystem::resize_file(held, 100);
  const Outcome outcome = training.wait();
  EXPECT_EQ(outcome.code, 1) << outcome;
  EXPECT_THAT(outcome.errors, HasSubstr(held));
  EXPECT_EQ(training_.last_committed("run"), 1500);
  EXPECT_EQ(training_.rows("run").size(), 1500U);
}

TEST_P(BadData, InTheLastEvaluationKeepsTheResult) {
  const std::string held = training_.directory().write("held.txt", generated_text(20'000, 3));
  ProgramRun training(training_.command(
      "run", {"--max-steps", "1500", "--validation-data", held, "--local-ranks", GetParam()}));
  ASSERT_TRUE(training.wait_for("\nstep ", 1)) << training.wait();
  std::filesystem::resize_file(held, 100);
  const Outcome outcome = training.wait();
  EXPECT_EQ(outcome.code, 1) << outcome;
  EXPECT_THAT(outcome.errors, HasSubstr(held));
  EXPECT_TRUE(training_.directory().has("run/final/config.json"));
  EXPECT_EQ(training_.rows("run").size(), 1500U);
}

// The directory is as nanoGPT leaves it. The ids use the first 97 of 256.
TEST(TokenDirectory, SaysWhatItLeavesOutAndWhatIsOdd) {
  const TinyTraining training;
  training.directory().write("d/train.bin", raw_tokens(kTokens));
  training.directory().write("d/val.bin", raw_tokens(kTokens).substr(0, 1000));
  training.directory().write("d/meta.pkl", "pickle");
  const Arguments data = {
      "--data", training.path("d"), "--data-format", "raw-u16", "--max-steps", "1", "--local-ranks",
      "2"};
  const Outcome outcome = training.train("run", data);
  EXPECT_THAT(outcome.output, HasSubstr("\ndata: 6000 tokens to train on"));
  EXPECT_THAT(outcome.output, HasSubstr("; 500 to validate on"));
  EXPECT_THAT(outcome.output, HasSubstr("meta.pkl"));
  EXPECT_THAT(outcome.output, HasSubstr("val.bin"));
  EXPECT_EQ(outcome.errors, "");
  std::string config = llama_config(2, 32);
  config.replace(config.find("256"), 3, "9999");
  training.directory().write("model/config.json", config);
  const Outcome large = training.train("large", data);
  const std::string doubt = "none is above 96, but the vocabulary is 9999";
  EXPECT_THAT(large.errors, HasSubstr(doubt));
  EXPECT_EQ(large.errors.find(doubt), large.errors.rfind(doubt)) << "once, whatever the ranks";
}

// Under this mask most windows have nothing to train on.
TEST_P(BadData, StepsWithoutATargetAreWarnedOfOnce) {
  std::string mask(kTokens, '\0');
  mask.back() = '\1';
  training_.directory().write("tokens.u16.mask", mask);
  const Outcome outcome = training_.train(
      "run", with_tokens(kTokens) + Arguments{"--max-steps", "8", "--validation-fraction", "0"});
  const std::string warning = "its samples have no token to train on";
  EXPECT_THAT(outcome.errors, HasSubstr(warning));
  EXPECT_EQ(outcome.errors.find(warning), outcome.errors.rfind(warning));
  EXPECT_THAT(outcome.output, HasSubstr(" samples have no token to train on; the next begins:"));
}

// Only the last sample has something to evaluate on.
TEST_P(BadData, EvaluatedSamplesWithoutATargetAreRefused) {
  std::string mask(kTokens, '\1');
  std::fill(mask.begin() + 4000, mask.end() - 1, '\0');
  training_.directory().write("tokens.u16.mask", mask);
  const Arguments steps =
      with_tokens(kTokens) + Arguments{"--max-steps", "2", "--validation-fraction", "0.2"};
  for (const char* const dry : {"--dry-run", ""}) {
    const Arguments few = {"--eval-samples", "4"};
    const Outcome outcome = run_program(
        training_.command("run", steps + few + (*dry == '\0' ? Arguments{} : Arguments{dry})));
    EXPECT_EQ(outcome.code, 2) << outcome;
    EXPECT_THAT(
        outcome.errors,
        HasSubstr("--eval-samples 4: none of the samples that it takes of the validation data"));
    EXPECT_THAT(outcome.errors, HasSubstr("give a larger --eval-samples (0: all samples)"));
    EXPECT_FALSE(training_.directory().has("run"));
  }
  training_.train("run", steps + Arguments{"--eval-samples", "0"});
  EXPECT_GT(training_.rows("run").back().columns.at("validation_loss"), 0);
}

INSTANTIATE_TEST_SUITE_P(Ranks, BadData, testing::Values("1", "2"),
                         [](const auto& instance) { return std::string(instance.param); });

}  // namespace
}  // namespace terrace
