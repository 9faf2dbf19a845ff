#include "runtime/train/best_record.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <stdexcept>

#include "tests/runtime/temporary_directory.h"

namespace terrace {
namespace {

using testing::HasSubstr;

class BestRecordTest : public testing::Test {
 protected:
  static BestRecord::Setting setting(std::uint64_t set_hash = 7) {
    return {.keeps_best = true, .patience = 2, .set = "held", .set_hash = set_hash};
  }

  // Adds an evaluation, and saves and records its checkpoint as a run does.
  void evaluate(BestRecord& best, std::int64_t step, double loss) const {
    if (best.add(step, loss)) {
      make_checkpoint(step);
      best.set_kept(step);
    }
    best.write(directory_.path());
  }

  void make_checkpoint(std::int64_t step) const {
    directory_.write("checkpoint-" + std::to_string(step) + "/manifest.json", "{}");
  }

  nlohmann::json file() const { return nlohmann::json::parse(directory_.read("best.json")); }

  std::string resume(BestRecord& best, std::int64_t step,
                     const std::optional<EvaluationHistory>& history = std::nullopt) const {
    return best.resume({directory_.path(), step, history, true}, RankGroup(nullptr, {}));
  }

  const TemporaryDirectory directory_;
};

TEST_F(BestRecordTest, TheLowestLossIsKeptAndPatienceCountsFromIt) {
  BestRecord best(setting());
  EXPECT_FALSE(best.history().has_value());
  evaluate(best, 2, 3.0);
  EXPECT_EQ(best.kept_step(), 2);
  evaluate(best, 4, 3.0);  // an equal loss does not count as better
  EXPECT_EQ(best.kept_step(), 2);
  EXPECT_FALSE(best.is_out_of_patience());
  evaluate(best, 6, 2.5);
  EXPECT_EQ(best.kept_step(), 6);
  EXPECT_EQ(file().at("checkpoint"), "checkpoint-6");
  EXPECT_EQ(file().at("validation_loss"), 2.5);
  EXPECT_EQ(file().at("set"), "held");
  evaluate(best, 8, 2.6);
  EXPECT_FALSE(best.is_out_of_patience());
  evaluate(best, 10, 2.7);
  EXPECT_TRUE(best.is_out_of_patience());
  EXPECT_THAT(
      best.describe_end(),
      HasSubstr("after step 10: 2 evaluations in a row had no lower validation_loss/held than "
                "2.5000, the value after step 6"));
  EXPECT_EQ(step_of_early_end(directory_.path(), 2), 10);
  EXPECT_FALSE(step_of_early_end(directory_.path(), 3).has_value());
}

TEST_F(BestRecordTest, AResumeGoesOnFromTheFile) {
  BestRecord before(setting());
  evaluate(before, 2, 2.5);
  evaluate(before, 4, 2.6);
  BestRecord best(setting());
  EXPECT_EQ(resume(best, 4), "");
  EXPECT_EQ(best.kept_step(), 2);
  evaluate(best, 6, 2.55);
  EXPECT_TRUE(best.is_out_of_patience());
}

// The run saved a checkpoint after an evaluation, but died before it wrote best.json.
TEST_F(BestRecordTest, WhatACheckpointKeepsIsTakenWhereItIsLater) {
  BestRecord before(setting());
  evaluate(before, 2, 2.5);
  make_checkpoint(4);
  BestRecord best(setting());
  EXPECT_EQ(resume(best, 4,
                   EvaluationHistory{.set_hash = 7,
                                     .last_step = 4,
                                     .lowest_step = 4,
                                     .lowest_loss = 2.0,
                                     .without_better = 0}),
            "");
  EXPECT_EQ(best.kept_step(), 4);
  EXPECT_FALSE(best.add(6, 2.1));
}

TEST_F(BestRecordTest, GoingBackForgetsLaterEvaluations) {
  BestRecord before(setting());
  evaluate(before, 2, 2.5);
  const std::optional<EvaluationHistory> of_checkpoint = before.history();
  evaluate(before, 4, 2.0);
  BestRecord best(setting());
  EXPECT_EQ(resume(best, 2, of_checkpoint), "");
  EXPECT_EQ(best.kept_step(), 2);
  EXPECT_TRUE(best.add(4, 2.4));
}

TEST_F(BestRecordTest, WithoutItsCheckpointTheBestIsLookedForAnew) {
  BestRecord before(setting());
  before.add(2, 2.5);  // without its checkpoint: saving failed, or it was removed
  before.write(directory_.path());
  BestRecord best(setting());
  EXPECT_THAT(resume(best, 2), HasSubstr("after step 2, is not in " + directory_.path()));
  EXPECT_TRUE(best.add(4, 3.0)) << "the best that there is";
  EXPECT_EQ(best.history()->lowest_step, 2) << "patience counts on";
}

TEST_F(BestRecordTest, LossesOfAnotherSetAreNotCompared) {
  BestRecord before(setting());
  evaluate(before, 2, 2.5);
  BestRecord best(setting(8));
  EXPECT_THAT(resume(best, 2), HasSubstr("differs from the previous run"));
  EXPECT_EQ(best.kept_step(), 0);
  EXPECT_TRUE(best.add(4, 3.0));
}

TEST_F(BestRecordTest, AResumeThatDoesNotAskForItLeavesCheckpointAndFile) {
  BestRecord before(setting());
  evaluate(before, 2, 2.5);
  evaluate(before, 4, 2.6);
  const std::string left = directory_.read("best.json");
  BestRecord best({});
  EXPECT_THAT(resume(best, 4), HasSubstr("checkpoint-2, which --keep-best kept, stays"));
  EXPECT_EQ(best.kept_step(), 2);
  EXPECT_FALSE(best.add(6, 2.0));
  EXPECT_FALSE(best.history().has_value());
  best.write(directory_.path());
  EXPECT_EQ(directory_.read("best.json"), left);
  BestRecord patient({.patience = 1, .set = "held", .set_hash = 7});
  EXPECT_THAT(resume(patient, 4), HasSubstr("stays"));
  EXPECT_FALSE(patient.add(6, 2.4)) << "it is not kept";
  patient.write(directory_.path());
  EXPECT_EQ(file().at("checkpoint"), "checkpoint-2");
  EXPECT_EQ(file().at("evaluations").at("lowest_step"), 6);
}

// The checkpoint no longer exists, as if a run had been resumed from an earlier step.
TEST_F(BestRecordTest, AResumeThatDoesNotAskForItRemovesTheFileOfACheckpointThatIsGone) {
  BestRecord before(setting());
  before.add(2, 2.5);
  before.set_kept(2);
  before.write(directory_.path());
  BestRecord best({});
  EXPECT_EQ(resume(best, 4), "");
  EXPECT_EQ(best.kept_step(), 0);
  best.write(directory_.path());
  EXPECT_FALSE(directory_.has("best.json"));
}

TEST_F(BestRecordTest, AFileThatIsNoRecordIsTakenForNone) {
  for (const char* text : {"", "[]", "{", R"({"schema": 3})", R"({"schema": "terrace.best/1"})",
                           R"({"schema": "terrace.best/1", "evaluations": {"last_step": 4}})"}) {
    directory_.write("best.json", text);
    BestRecord best(setting());
    EXPECT_EQ(resume(best, 8), "") << text;
    EXPECT_TRUE(best.add(10, 3.0)) << text;
  }
}

TEST_F(BestRecordTest, NobodyAskedForItKeepsNothing) {
  directory_.write("best.json", "of a run that asked for it");
  BestRecord best({});
  EXPECT_FALSE(best.add(2, 1.0));
  EXPECT_FALSE(best.history().has_value());
  best.write(directory_.path());
  EXPECT_FALSE(directory_.has("best.json"));
}

TEST(EvaluationHistory, IsReadAsItWasWritten) {
  EvaluationHistory history;
  EXPECT_TRUE(history.add(3, 1.0 / 3));
  EXPECT_FALSE(history.add(6, 0.5));
  history.set_hash = ~std::uint64_t{0};
  EXPECT_EQ(parse_evaluation_history(to_json(history)), history);
  EXPECT_EQ(history.without_better, 1);
  history.lowest_step = 7;
  EXPECT_THROW(parse_evaluation_history(to_json(history)), std::exception) << "after the last";
}

}  // namespace
}  // namespace terrace
