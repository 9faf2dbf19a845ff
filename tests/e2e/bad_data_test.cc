#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/e2e/tiny_training.h"

// Token files with an id that the model does not have.
namespace terrace {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr std::size_t kTokens = 6000;

// Ids below 100 in two bytes each; `bad` of them is 300.
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

// Before it is needed, which is after the last step.
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

  // With the data mended the run goes on as if nothing had been.
  const std::string last = std::to_string(rows.back().step + 2);
  const Arguments mended = with_tokens(kTokens) + steps + Arguments{"--stop-after-step", last};
  training_.train("run", mended + Arguments{"--resume", "auto"});
  training_.train("alone", mended);
  training_.expect_same("run", "alone", "checkpoint-" + last);
}

// Two steps have been trained, and are kept, when the evaluation after them cannot be.
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

INSTANTIATE_TEST_SUITE_P(Ranks, BadData, testing::Values("1", "2"),
                         [](const auto& instance) { return std::string(instance.param); });

}  // namespace
}  // namespace terrace
