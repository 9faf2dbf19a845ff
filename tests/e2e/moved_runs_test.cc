#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/e2e/tiny_training.h"

// Run directories that are moved, copied, or stand among the data.
namespace terrace {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::Not;

const Arguments kSavedSteps = {"--max-steps", "6", "--checkpoint-every", "2"};

class MovedRuns : public testing::Test {
 protected:
  MovedRuns() { training_.train("old", kSavedSteps + Arguments{"--stop-after-step", "3"}); }

  std::string path(const std::string& name) const { return training_.path(name); }
  bool has(const std::string& name) const { return training_.directory().has(name); }
  void copy(const std::string& from, const std::string& to) const {
    fs::copy(path(from), path(to), fs::copy_options::recursive);
  }
  Arguments resume(const std::string& config, const Arguments& more = {}) const {
    return Arguments{"train", "--config", path(config), "--resume", "auto"} + more;
  }

  const TinyTraining training_;
};

TEST_F(MovedRuns, GoOnWhereTheyAreNow) {
  fs::rename(path("old"), path("new"));
  const Outcome outcome = run_program(resume("new/config.toml", {"--stop-after-step", "0"}));
  EXPECT_EQ(outcome.code, 0) << outcome;
  EXPECT_THAT(outcome.output, HasSubstr("resumed after step 3"));
  EXPECT_THAT(outcome.errors, HasSubstr("the run directory is " + path("new")));
  EXPECT_FALSE(has("old"));
  training_.train("alone", kSavedSteps);
  training_.expect_same("new", "alone", "final");
  EXPECT_THAT(training_.directory().read("new/config.toml"),
              HasSubstr("run_dir = \"" + path("new") + "\""));
  const Outcome again = run_program(resume("new/config.toml"));
  EXPECT_THAT(again.output, HasSubstr("is complete"));
  EXPECT_THAT(again.errors, Not(HasSubstr("the run directory is")));
}

// Nothing of the original is read or written.
TEST_F(MovedRuns, CopiesAreRunsOfTheirOwn) {
  copy("old", "copy");
  const auto before = training_.directory().read("old/metrics.jsonl");
  const Arguments more = {"--stop-after-step", "0", "--learning-rate", "1e-2"};
  const Outcome outcome = run_program(resume("copy/config.toml", more));
  EXPECT_EQ(outcome.code, 0) << outcome;
  EXPECT_TRUE(has("copy/final/config.json"));
  EXPECT_FALSE(has("old/final"));
  EXPECT_FALSE(has("old/checkpoint-4"));
  EXPECT_EQ(training_.directory().read("old/metrics.jsonl"), before);
}

// The named checkpoint is in the copy, and so are the files that the run writes.
TEST_F(MovedRuns, GoOnFromACheckpointThatIsNamedInTheCopy) {
  copy("old", "copy");
  const Outcome outcome = run_program({"train", "--config", path("copy/config.toml"), "--resume",
                                       path("copy/checkpoint-3"), "--stop-after-step", "5"});
  EXPECT_EQ(outcome.code, 0) << outcome;
  EXPECT_TRUE(has("copy/checkpoint-5"));
  EXPECT_FALSE(has("old/checkpoint-5"));
}

// The directory can also be recognized by its checkpoints alone.
TEST_F(MovedRuns, AreKnownWithoutTheRecordOfTheRun) {
  fs::rename(path("old"), path("new"));
  fs::remove(path("new/run.json"));
  const Outcome outcome = run_program(resume("new/config.toml", {"--stop-after-step", "5"}));
  EXPECT_EQ(outcome.code, 0) << outcome;
  EXPECT_TRUE(has("new/checkpoint-5"));
  EXPECT_FALSE(has("old"));
}

TEST_F(MovedRuns, AConfigurationUnderAnotherNameIsNotTakenForTheOldPlace) {
  fs::rename(path("old"), path("new"));
  fs::copy(path("new/config.toml"), path("new/faster.toml"));
  const Outcome refused = run_program(resume("new/faster.toml"));
  EXPECT_EQ(refused.code, 2) << refused;
  EXPECT_THAT(refused.errors, HasSubstr("give --run-dir " + path("new")));
  EXPECT_FALSE(has("old"));
  const Arguments named = {"--run-dir", path("new"), "--stop-after-step", "5"};
  EXPECT_EQ(run_program(resume("new/faster.toml", named)).code, 0);
  EXPECT_TRUE(has("new/checkpoint-5"));
}

TEST_F(MovedRuns, ADirectoryThatIsNamedWins) {
  copy("old", "copy");
  const Arguments more = {"--run-dir", path("old"), "--stop-after-step", "5"};
  EXPECT_EQ(run_program(resume("copy/config.toml", more)).code, 0);
  EXPECT_TRUE(has("old/checkpoint-5"));
  EXPECT_FALSE(has("copy/checkpoint-5"));
}

// This happens if the whole project was moved. A path in the file that no longer exists is refused
// by its name.
TEST_F(MovedRuns, WhatDidNotMoveAlongIsNamed) {
  fs::rename(path("text.txt"), path("elsewhere.txt"));
  const Outcome data = run_program(resume("old/config.toml"));
  EXPECT_EQ(data.code, 2) << data;
  EXPECT_THAT(data.errors, HasSubstr("--data " + path("text.txt")));
  fs::rename(path("elsewhere.txt"), path("text.txt"));
  fs::rename(path("model"), path("elsewhere"));
  const Outcome model = run_program(resume("old/config.toml"));
  EXPECT_EQ(model.code, 2) << model;
  EXPECT_THAT(model.errors, HasSubstr(path("model")));
}

TEST_F(MovedRuns, AResumeThatStartsOverSaysSo) {
  const Outcome first = training_.train("fresh", {"--max-steps", "1", "--resume", "auto"});
  EXPECT_THAT(first.output, HasSubstr("--resume auto found no checkpoint in " + path("fresh") +
                                      ", so the run starts over at step 1: starts from random"));
  EXPECT_THAT(first.errors, Not(HasSubstr("no checkpoint")));
  for (const char* checkpoint : {"checkpoint-2", "checkpoint-3"}) {
    fs::remove_all(path("old") + "/" + checkpoint);
  }
  const Outcome lost =
      training_.train("old", kSavedSteps + Arguments{"--stop-after-step", "1", "--resume", "auto"});
  EXPECT_THAT(lost.errors, HasSubstr("3 steps were done in " + path("old")));
  EXPECT_TRUE(has("old/metrics.jsonl.before"));
}

// A link to the run directory is not another place.
TEST_F(MovedRuns, ALinkIsTheSameDirectory) {
  fs::create_directory_symlink(path("old"), path("latest"));
  const Outcome outcome = run_program(resume("latest/config.toml", {"--stop-after-step", "5"}));
  EXPECT_EQ(outcome.code, 0) << outcome;
  EXPECT_THAT(outcome.errors, Not(HasSubstr("the run directory is")));
  EXPECT_THAT(training_.directory().read("old/config.toml"),
              HasSubstr("run_dir = \"" + path("old") + "\""));
}

// A file that a user wrote there before the first run is not lost.
TEST_F(MovedRuns, AConfigurationOfTheUsersOwnIsKept) {
  training_.directory().write("mine/config.toml", "# mine\nmax_steps = 1\n");
  const Outcome outcome = training_.train("mine", {"--max-steps", "1"});
  EXPECT_EQ(training_.directory().read("mine/config.toml.before"), "# mine\nmax_steps = 1\n");
  EXPECT_THAT(training_.directory().read("mine/config.toml"), HasSubstr("max_steps = 1\n"));
  EXPECT_THAT(outcome.errors, HasSubstr("config.toml.before"));
}

class RunsAmongTheData : public testing::Test {
 protected:
  RunsAmongTheData() {
    training_.directory().write("texts/a.txt", generated_text(20'000, 7));
    training_.directory().write("texts/below/b.txt", generated_text(20'000, 8));
  }

  // Runs the program as a user does who has changed to the directory of the texts.
  Outcome run_in_texts(const Arguments& more) const {
    const Arguments common = {
        "train",    "--model", training_.path("model"), "--init", "random", "--data", ".",
        "--device", "cpu",     "--max-steps",           "4"};
    return ProgramRun(common + more, {}, {"env", "-C", training_.path("texts")}).wait();
  }

  const TinyTraining training_;
};

TEST_F(RunsAmongTheData, AreLeftOutOfThem) {
  const Outcome first = run_in_texts({"--stop-after-step", "2"});
  ASSERT_EQ(first.code, 0) << first;
  const std::string run =
      fs::directory_iterator(training_.path("texts/runs"))->path().filename().string();
  const Outcome resumed = ProgramRun({"train", "--config", "runs/" + run + "/config.toml",
                                      "--resume", "auto", "--stop-after-step", "0"},
                                     {}, {"env", "-C", training_.path("texts")})
                              .wait();
  EXPECT_EQ(resumed.code, 0) << resumed;
  EXPECT_THAT(resumed.output, HasSubstr("left out of --data because it is a run directory"));
  const Arguments formats[] = {{}, {"--data-format", "text"}};
  for (const Arguments& format : formats) {
    const Outcome second =
        run_in_texts(format + Arguments{"--run-dir", "below/second", "--validation-data", "."});
    EXPECT_EQ(second.code, 0) << second;
    EXPECT_THAT(second.output, HasSubstr("data: 40000 tokens"));
    EXPECT_THAT(second.output, HasSubstr("left out of --validation-data"));
    fs::remove_all(training_.path("texts/below/second"));
  }
}

TEST_F(RunsAmongTheData, AreRefusedWhereTheyAreTheDataThemselves) {
  const Outcome outcome = run_in_texts({"--run-dir", "."});
  EXPECT_EQ(outcome.code, 2) << outcome;
  EXPECT_THAT(outcome.errors, HasSubstr("--run-dir . is the directory . of --data"));
  EXPECT_FALSE(training_.directory().has("texts/lock"));
}

TEST_F(RunsAmongTheData, AreNotTokenized) {
  training_.directory().write("tokenizer.json", small_tokenizer());
  ASSERT_EQ(run_in_texts({}).code, 0);
  const Outcome outcome =
      run_program({"tokenize", training_.path("texts"), "--tokenizer",
                   training_.path("tokenizer.json"), "--output", training_.path("ids.bin")});
  EXPECT_EQ(outcome.code, 0) << outcome;
  EXPECT_THAT(outcome.output, HasSubstr("of 2 documents"));
  EXPECT_THAT(outcome.errors, HasSubstr("left out of PATH because it is a run directory"));
}

}  // namespace
}  // namespace terrace
