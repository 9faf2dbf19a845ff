#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "tests/e2e/tiny_training.h"

namespace terrace {
namespace {

using testing::HasSubstr;
using testing::Not;
namespace fs = std::filesystem;

// Runs that are evaluated on letters that the text does not have: the more a run learns, the less
// it expects them.
class BestCheckpoint : public testing::Test {
 protected:
  void SetUp() override { training_.directory().write("zeros.txt", std::string(3000, '0')); }

  Arguments evaluated(const Arguments& more) const {
    return Arguments{"--eval-every", "2", "--validation-data",
                     "odd=" + training_.path("zeros.txt")} +
           more;
  }

  // Returns the evaluated step with the lowest loss.
  std::int64_t best_step(const std::string& run) const {
    std::int64_t best = 0;
    double lowest = 1e30;
    for (const MetricsRow& row : training_.rows(run)) {
      const auto loss = row.columns.find("validation_loss");
      if (loss == row.columns.end() || loss->second >= lowest) continue;
      lowest = loss->second;
      best = row.step;
    }
    return best;
  }

  std::set<std::string> checkpoints(const std::string& run) const {
    std::set<std::string> names;
    for (const auto& entry : fs::directory_iterator(training_.path(run))) {
      const std::string name = entry.path().filename().string();
      if (name.starts_with("checkpoint-")) names.insert(name);
    }
    return names;
  }

  nlohmann::json best_of(const std::string& run) const {
    return nlohmann::json::parse(training_.directory().read(run + "/best.json"));
  }

  const TinyTraining training_;
};

TEST_F(BestCheckpoint, IsKeptWhateverKeepLastSays) {
  const Arguments saved = {"--max-steps", "12", "--checkpoint-every", "3", "--keep-last", "1"};
  const Outcome outcome = training_.train("run", evaluated(saved + Arguments{"--keep-best"}));
  EXPECT_THAT(outcome.output, HasSubstr("best checkpoint: " + training_.path("run/checkpoint-2") +
                                        ", after step 2, validation_loss/odd "));
  EXPECT_EQ(best_step("run"), 2) << "else this test tries nothing";
  EXPECT_EQ(checkpoints("run"), (std::set<std::string>{"checkpoint-2", "checkpoint-12"}));
  const nlohmann::json best = best_of("run");
  EXPECT_EQ(best.at("checkpoint"), "checkpoint-2");
  EXPECT_EQ(best.at("set"), "odd");
  EXPECT_EQ(best.at("validation_loss"),
            training_.rows("run").at(1).columns.at("validation_loss/odd"));
  training_.train("plain", evaluated(saved));
  EXPECT_FALSE(training_.directory().has("plain/best.json"));
  training_.expect_same("run", "plain", "final");  // the last state all the same
}

TEST_F(BestCheckpoint, TheOneThatWasBestGoesWhereABetterOneIsThere) {
  const Outcome outcome =
      training_.train("run", {"--max-steps", "8", "--eval-every", "2", "--keep-last", "1",
                              "--keep-best", "--validation-data", training_.path("text.txt")});
  const std::int64_t best = best_step("run");
  EXPECT_GT(best, 2);
  EXPECT_EQ(checkpoints("run"), std::set<std::string>{"checkpoint-" + std::to_string(best)});
  EXPECT_THAT(outcome.output, HasSubstr("saved " + training_.path("run/checkpoint-2\n")));
}

TEST_F(BestCheckpoint, AResumeKnowsIt) {
  const Arguments saved = evaluated({"--max-steps", "8", "--keep-last", "1", "--keep-best"});
  training_.train("whole", saved);
  training_.train("run", saved + Arguments{"--stop-after-step", "5"});
  EXPECT_EQ(checkpoints("run"), (std::set<std::string>{"checkpoint-2", "checkpoint-5"}));
  training_.train("run", saved + Arguments{"--resume", "auto", "--stop-after-step", "7"});
  EXPECT_EQ(checkpoints("run"), (std::set<std::string>{"checkpoint-2", "checkpoint-7"}));
  training_.train("run", saved + Arguments{"--resume", "auto"});
  training_.expect_same("run", "whole", "final");
  EXPECT_EQ(best_of("run"), best_of("whole"));
  // Goes on from the best checkpoint, in another directory.
  const Outcome elsewhere = training_.train(
      "elsewhere", saved + Arguments{"--resume", training_.path("run/checkpoint-2")});
  EXPECT_THAT(elsewhere.output, HasSubstr("is not in " + training_.path("elsewhere")));
  EXPECT_EQ(best_of("elsewhere").at("checkpoint"), "checkpoint-4");
}

TEST_F(BestCheckpoint, AResumeWithoutTheFlagLeavesIt) {
  const Arguments steps = {"--max-steps", "12", "--checkpoint-every", "3", "--keep-last", "1"};
  training_.train("run", evaluated(steps + Arguments{"--keep-best", "--stop-after-step", "6"}));
  EXPECT_EQ(checkpoints("run"), (std::set<std::string>{"checkpoint-2", "checkpoint-6"}));
  const nlohmann::json best = best_of("run");
  const Outcome outcome = training_.train("run", evaluated(steps + Arguments{"--resume", "auto"}));
  EXPECT_THAT(outcome.output, HasSubstr("checkpoint-2, which --keep-best kept, stays"));
  EXPECT_EQ(checkpoints("run"), (std::set<std::string>{"checkpoint-2", "checkpoint-12"}));
  EXPECT_EQ(best_of("run"), best);
}

TEST_F(BestCheckpoint, PatienceEndsTheRunAsDone) {
  const Arguments steps = {"--max-steps", "20", "--early-stopping-patience"};
  const Outcome outcome = training_.train("run", evaluated(steps + Arguments{"2"}));
  EXPECT_EQ(training_.rows("run").size(), 6U);
  EXPECT_THAT(outcome.output,
              HasSubstr("ends early after step 6: 2 evaluations in a row had no lower "
                        "validation_loss/odd than "));
  EXPECT_EQ(checkpoints("run"), std::set<std::string>{"checkpoint-6"});
  EXPECT_TRUE(training_.directory().has("run/final/model.safetensors"));
  // If it is started again, it has nothing to do; with more patience it goes on.
  const Arguments again = {"--resume", "auto"};
  const Outcome complete = training_.train("run", evaluated(steps + Arguments{"2"} + again));
  EXPECT_THAT(complete.output, HasSubstr("is complete: its result, of 6 steps, is in final"));
  training_.train("run", evaluated(steps + Arguments{"4"} + again));
  EXPECT_EQ(training_.rows("run").size(), 10U);
  training_.train("patient", evaluated(steps + Arguments{"4"}));
  training_.expect_same("run", "patient", "final");
}

TEST_F(BestCheckpoint, PatienceSurvivesAResume) {
  const Arguments steps = evaluated({"--max-steps", "20", "--early-stopping-patience", "3"});
  training_.train("whole", steps);
  EXPECT_EQ(training_.rows("whole").size(), 8U);
  training_.train("run", steps + Arguments{"--stop-after-step", "5"});
  const fs::path left = training_.path("run");
  // In another directory only the checkpoint tells of earlier evaluations.
  training_.train("elsewhere", steps + Arguments{"--resume", left / "checkpoint-5"});
  EXPECT_EQ(training_.rows("elsewhere").back().step, 8);
  training_.train("run", steps + Arguments{"--resume", "auto"});
  training_.expect_same("run", "whole", "final");
  training_.expect_same("run", "whole", "checkpoint-8");
}

TEST_F(BestCheckpoint, RanksAgreeOnIt) {
  for (const char* parallel : {"--tensor-parallel", "--pipeline-parallel"}) {
    const std::string run = parallel;
    const Arguments ranks = {"--local-ranks", "2", parallel, "2"};
    const Outcome outcome =
        training_.train(run, evaluated({"--max-steps", "20", "--keep-best",
                                        "--early-stopping-patience", "2", "--keep-last", "1"}) +
                                 ranks);
    EXPECT_THAT(outcome.output, HasSubstr("ends early after step 6"));
    EXPECT_EQ(checkpoints(run), (std::set<std::string>{"checkpoint-2", "checkpoint-6"}));
    EXPECT_EQ(best_of(run).at("step"), 2);
  }
}

TEST_F(BestCheckpoint, NeedsEvaluations) {
  for (const Arguments& flag :
       std::initializer_list<Arguments>{{"--keep-best"}, {"--early-stopping-patience", "3"}}) {
    const Outcome outcome =
        run_program(training_.command("refused", flag + Arguments{"--max-steps", "2"}));
    EXPECT_EQ(outcome.code, 2) << outcome;
    EXPECT_THAT(outcome.errors, HasSubstr(flag.front() + " without --eval-every"));
    EXPECT_FALSE(training_.directory().has("refused"));
  }
}

}  // namespace
}  // namespace terrace
