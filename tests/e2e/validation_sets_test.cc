#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/e2e/tiny_training.h"

namespace terrace {
namespace {

using testing::HasSubstr;

class ValidationSetsOfARun : public testing::Test {
 protected:
  void SetUp() override {
    training_.directory().write("held.txt", generated_text(3000, 11));
    training_.directory().write("zeros.txt", std::string(3000, '0'));
    training_.directory().write("more.txt", std::string(700, 'q'));
  }

  std::string named(const std::string& name, const std::string& file) const {
    return name + "=" + training_.path(file);
  }

  // Returns two sets. The second one has two paths.
  Arguments both() const {
    return {"--validation-data", named("held", "held.txt"), named("odd", "zeros.txt"),
            named("odd", "more.txt")};
  }

  double last(const std::string& run, const std::string& column) const {
    const auto columns = training_.rows(run).back().columns;
    const auto found = columns.find(column);
    EXPECT_NE(found, columns.end()) << run << " has no " << column;
    return found == columns.end() ? 0 : found->second;
  }

  const TinyTraining training_;
  const Arguments steps_ = {"--max-steps", "4"};
};

TEST_F(ValidationSetsOfARun, EachHasTheLossThatItHasAlone) {
  const Outcome outcome = training_.train("both", steps_ + both());
  const Arguments alone = {"--validation-data"};
  training_.train("held", steps_ + alone + Arguments{training_.path("held.txt")});
  training_.train(
      "odd", steps_ + alone + Arguments{training_.path("zeros.txt"), training_.path("more.txt")});
  EXPECT_EQ(last("both", "validation_loss/held"), last("held", "validation_loss"));
  EXPECT_EQ(last("both", "validation_loss/odd"), last("odd", "validation_loss"));
  EXPECT_EQ(last("both", "validation_loss"), last("held", "validation_loss")) << "the first's";
  EXPECT_NE(last("held", "validation_loss"), last("odd", "validation_loss"));
  EXPECT_THAT(outcome.output, HasSubstr("  validation_loss/held "));
  EXPECT_THAT(outcome.output, HasSubstr("  validation_loss/odd "));
  EXPECT_THAT(outcome.output, HasSubstr(" samples of odd, as much computation as "));
  training_.expect_same("both", "held", "final");
}

// The run's file has the sets, and a resume may have others. A path without a name is the first
// set.
TEST_F(ValidationSetsOfARun, AResumeGoesOnWithTheSetsOfTheFileOrWithOthers) {
  const Arguments eight = {"--max-steps", "8", "--eval-every", "2", "--checkpoint-every", "4"};
  training_.train("whole", eight + both());
  training_.train("run", eight + both() + Arguments{"--stop-after-step", "4"});
  const Outcome same = run_program({"train", "--config", training_.path("run/config.toml"),
                                    "--resume", "auto", "--stop-after-step", "6"});
  EXPECT_EQ(same.code, 0) << same;
  EXPECT_EQ(training_.rows("run").at(5).columns.at("validation_loss/odd"),
            training_.rows("whole").at(5).columns.at("validation_loss/odd"));
  const Outcome other =
      run_program({"train", "--config", training_.path("run/config.toml"), "--resume", "auto",
                   "--stop-after-step", "0", "--validation-data", named("zeros", "zeros.txt"),
                   training_.path("held.txt")});
  EXPECT_EQ(other.code, 0) << other;
  EXPECT_EQ(last("run", "validation_loss"), last("whole", "validation_loss/held"));
  EXPECT_GT(last("run", "validation_loss/zeros"), 0);
  training_.expect_same("run", "whole", "final");
}

TEST_F(ValidationSetsOfARun, RanksHaveTheSameLosses) {
  const Arguments batch = {"--micro-batch-size", "2", "--gradient-accumulation-steps", "2"};
  training_.train("one", steps_ + both() + batch);
  for (const Arguments& mesh : std::initializer_list<Arguments>{
           {"--local-ranks", "2", "--gradient-accumulation-steps", "1"},
           {"--local-ranks", "2", "--pipeline-parallel", "2"},
           {"--local-ranks", "2", "--tensor-parallel", "2"}}) {
    const std::string run = "ranks" + mesh.at(2);
    training_.train(run, steps_ + both() +
                             (mesh.at(2) == "--gradient-accumulation-steps"
                                  ? Arguments{"--micro-batch-size", "2"} + mesh
                                  : batch + mesh));
    for (const char* column : {"validation_loss/held", "validation_loss/odd"}) {
      EXPECT_NEAR(last(run, column), last("one", column), 2e-3) << run;
    }
  }
}

TEST_F(ValidationSetsOfARun, WrongNamesAndMissingFilesAreRefused) {
  struct Refused {
    Arguments values;
    const char* says;
  };
  for (const auto& [values, says] : std::initializer_list<Refused>{
           {{"=" + training_.path("held.txt")}, "name of the set is empty"},
           {{named("a", "held.txt"), named("b", "zeros.txt"), named("a", "more.txt")},
            "the name a was already given"},
           {{named("a", "none.txt")}, "none.txt"},
       }) {
    const Outcome outcome =
        run_program(training_.command("refused", steps_ + Arguments{"--validation-data"} + values));
    EXPECT_EQ(outcome.code, 2) << outcome;
    EXPECT_THAT(outcome.errors, HasSubstr(says));
    EXPECT_THAT(outcome.errors, HasSubstr("--validation-data"));
    EXPECT_FALSE(training_.directory().has("refused"));
  }
}

}  // namespace
}  // namespace terrace
