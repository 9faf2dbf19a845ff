#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/e2e/tiny_training.h"

// Exceptions that no part of Terrace expects, planted into a library that every command calls
// (planted_exception.cc). Users are told that it is a defect, and not what the library says.
namespace terrace {
namespace {

using testing::HasSubstr;
using testing::Not;

// Runs the program so that its call of that number throws.
Outcome run_with_planted(int call, const Arguments& arguments) {
  const Arguments launcher = {"env", "LD_PRELOAD=" TERRACE_PLANTED_EXCEPTION,
                              "TERRACE_PLANTED_CALL=" + std::to_string(call)};
  return ProgramRun(arguments, {}, launcher).wait();
}

void expect_defect(const Outcome& outcome, const std::string& command) {
  EXPECT_EQ(outcome.code, 1) << outcome;
  EXPECT_THAT(outcome.errors, HasSubstr("a defect of Terrace ended " + command));
  EXPECT_THAT(outcome.errors, HasSubstr("unexpected std::out_of_range; please report it"));
  EXPECT_THAT(outcome.errors + outcome.output, Not(HasSubstr("_M_range_check")));
}

TEST(Defect, OfEveryCommandIsToldWithoutTheLibrarysText) {
  const TinyTraining training;
  const std::vector<Arguments> commands = {
      training.command("run", {"--max-steps", "1"}),
      {"sample", "--model", training.path("none"), "--prompt", "x"},
      {"tokenize", "--tokenizer", "none", "--output", training.path("t"), training.path("none")},
      {"export", "none", training.path("exported")},
      {"merge", "none", "none", training.path("merged")},
      {"inspect", training.path("common.toml")}};
  for (const Arguments& command : commands) {
    expect_defect(run_with_planted(1, command), "terrace " + command.front());
  }
}

// Whichever call it is: one of a rank, one of the lanes, or one at the end.
TEST(Defect, WhereverATrainingIsNothingOfTheLibraryIsSaid) {
  const TinyTraining training;
  int defects = 0;
  for (const int call : {2, 5, 10, 20, 40, 80, 160}) {
    for (const Arguments& ranks : {Arguments{}, Arguments{"--local-ranks", "2"}}) {
      const std::string run = "run" + std::to_string(call) + std::to_string(ranks.size());
      const Outcome outcome =
          run_with_planted(call, training.command(run, Arguments{"--max-steps", "2"} + ranks));
      EXPECT_THAT(outcome.errors + outcome.output, Not(HasSubstr("_M_range_check"))) << call;
      if (outcome.errors.find("a defect of Terrace") != std::string::npos) ++defects;
    }
  }
  EXPECT_GE(defects, 4);
}

TEST(Defect, OfABenchmarkSaysWhatItWasAt) {
  bool is_told_where = false;
  for (int call = 1; call <= 20 && !is_told_where; ++call) {
    const Outcome outcome = run_with_planted(call, {"bench", "copy", "--small"});
    EXPECT_THAT(outcome.errors + outcome.output, Not(HasSubstr("_M_range_check"))) << call;
    if (outcome.errors.find("while it was at 'bench copy: ") == std::string::npos) continue;
    expect_defect(outcome, "terrace bench copy");
    is_told_where = true;
  }
  EXPECT_TRUE(is_told_where);
}

}  // namespace
}  // namespace terrace
