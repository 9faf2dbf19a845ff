#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/e2e/tiny_training.h"

// Runs whose steps, or whose ranks, have different numbers of micro-batches.
namespace terrace {
namespace {

using testing::HasSubstr;

const Arguments kNineSteps = {"--max-steps", "9"};
const Arguments kSchedule = {"--accumulation-schedule", "2@1,5@4,1@8"};

Arguments all_on_drive(const TinyTraining& training) {
  return training.nvme() + Arguments{"--device-memory",   "16MiB", "--place-parameters", "nvme",
                                     "--place-gradients", "nvme",  "--place-optimizer",  "nvme"};
}

TEST(AccumulationSchedule, HasTheSameBitsOnEveryTierAndInEveryOrder) {
  const TinyTraining training;
  training.train("plain", kNineSteps + kSchedule);
  training.train("drive", kNineSteps + kSchedule + all_on_drive(training) +
                              Arguments{"--micro-batch-order", "micro-batch-major"});
  training.train("layers",
                 kNineSteps + kSchedule + all_on_drive(training) +
                     Arguments{"--micro-batch-order", "layer-major", "--recompute", "full"});
  for (const char* run : {"drive", "layers"}) training.expect_same(run, "plain", "final");
  const std::vector<MetricsRow> rows = training.rows("plain");
  ASSERT_EQ(rows.size(), 9U);
  const double one = rows.back().columns.at("tokens");
  EXPECT_EQ(rows[0].columns.at("tokens"), 2 * one);
  EXPECT_EQ(rows[2].columns.at("tokens"), 2 * one);
  EXPECT_EQ(rows[3].columns.at("tokens"), 5 * one);
  EXPECT_EQ(rows[6].columns.at("tokens"), 5 * one);
  EXPECT_EQ(rows[7].columns.at("tokens"), one);
  EXPECT_TRUE(training.nvme_is_empty());
}

// The run is stopped before a change, at one, and after one.
TEST(AccumulationSchedule, GoesOnAfterAStopAnywhere) {
  const TinyTraining training;
  training.train("alone", kNineSteps + kSchedule);
  for (const char* step : {"2", "3", "5"}) {
    const std::string run = std::string("run") + step;
    training.train(run, kNineSteps + kSchedule + all_on_drive(training) +
                            Arguments{"--stop-after-step", step});
    training.train(run, kNineSteps + kSchedule + Arguments{"--resume", "auto"});
    training.expect_same(run, "alone", "final");
  }
}

TEST(AccumulationSchedule, AConstantOneIsTheNumberItself) {
  const TinyTraining training;
  training.train("number", kNineSteps + Arguments{"--gradient-accumulation-steps", "3"});
  training.train("schedule", kNineSteps + Arguments{"--accumulation-schedule", "3@1"});
  training.expect_same("schedule", "number", "final");
}

// Each epoch of the text is used up by the same number of samples, however they are divided.
TEST(AccumulationSchedule, DecidesHowManyStepsAnEpochHas) {
  const TinyTraining training;
  const Arguments epoch = {"--num-train-epochs", "1", "--dry-run"};
  const auto steps_of = [&](const Arguments& more) {
    const std::string text = training.train("run", epoch + more).output;
    const std::size_t at = text.find(" steps");
    return std::stoll(text.substr(text.rfind(' ', at - 1) + 1));
  };
  const std::int64_t ones = steps_of({"--gradient-accumulation-steps", "1"});
  ASSERT_GT(ones, 20);
  EXPECT_EQ(steps_of({"--accumulation-schedule", "1@1,2@11"}), 10 + (ones - 10 + 1) / 2);
}

Arguments shares(const char* of_ranks, const char* steps) {
  return {"--local-ranks", "2", "--rank-shares", of_ranks, "--gradient-accumulation-steps", steps};
}

TEST(RankShares, HaveTheSamplesOfOneRankAndTheSameBitsInEveryStage) {
  const TinyTraining training;
  const Arguments fp32 = kNineSteps + Arguments{"--precision", "fp32"};
  training.train("alone", fp32 + Arguments{"--gradient-accumulation-steps", "4"});
  training.train("shared", fp32 + shares("3,1", "2"));
  training.train("divided", fp32 + shares("6,2", "2") + all_on_drive(training) +
                                Arguments{"--zero-stage", "3"});
  training.expect_same("divided", "shared", "final");
  expect_near(training.rows("shared"), training.rows("alone"), 1e-4);
}

TEST(RankShares, HaveTheSameBitsInIslands) {
  const TinyTraining training;
  const Arguments of_four =
      kNineSteps +
      Arguments{
          "--local-ranks", "4", "--rank-shares", "3,1,2,2", "--gradient-accumulation-steps", "2",
          "--zero-stage",  "3"};
  training.train("all", of_four);
  for (const char* partition : {"hpz", "hsdp"}) {
    training.train(partition,
                   of_four + Arguments{"--zero-partition", partition, "--island-ranks", "2"});
    training.expect_same(partition, "all", "final");
  }
}

TEST(RankShares, AreMeasuredOnceAndKept) {
  const TinyTraining training;
  const Arguments automatic = kNineSteps + shares("auto", "4");
  const Outcome first = training.train("run", automatic + Arguments{"--stop-after-step", "4"});
  const std::string line = "micro-batches of each step by data-parallel rank: ";
  ASSERT_THAT(first.output, HasSubstr(line));
  const std::size_t at = first.output.find(line) + line.size();
  const std::string measured = first.output.substr(at, first.output.find(" (", at) - at);
  EXPECT_THAT(first.output, HasSubstr(line + measured + " (measured)"));
  const Outcome second = training.train("run", automatic + Arguments{"--resume", "auto"});
  EXPECT_THAT(second.output, HasSubstr(line + measured + " (as before)"));
  EXPECT_EQ(training.rows("run").size(), 9U);
}

TEST(RankShares, AreInThePlanInRunJsonAndInTheReport) {
  const TinyTraining training;
  const auto recorded = [&](const std::string& run) {
    return nlohmann::json::parse(training.directory().read(run + "/run.json")).at("rank_shares");
  };
  const Arguments explained = {"--dry-run", "--explain", "embedding"};
  const Arguments given = kNineSteps + shares("3,1", "2");
  const std::string line = "micro-batches of each step by data-parallel rank: 3, 1 (by --rank-shar";
  EXPECT_THAT(training.train("given", given + explained).output, HasSubstr(line));
  training.train("given", given);
  EXPECT_EQ(recorded("given").at("micro_batches"), (std::vector<int>{3, 1}));
  EXPECT_EQ(recorded("given").at("origin"), "by --rank-shares");

  const Arguments automatic = kNineSteps + shares("auto", "4");
  EXPECT_THAT(training.train("run", automatic + explained).output,
              HasSubstr("8 over all data-parallel ranks, at most 7 for one"));
  training.train("run", automatic + Arguments{"--stop-after-step", "4"});
  const std::vector<int> measured = recorded("run").at("micro_batches");
  ASSERT_EQ(measured.size(), 2U);
  EXPECT_EQ(measured[0] + measured[1], 8);
  EXPECT_EQ(recorded("run").at("origin"), "measured");
  training.train("run", automatic + Arguments{"--resume", "auto"});
  EXPECT_EQ(recorded("run").at("micro_batches"), measured);
  EXPECT_EQ(recorded("run").at("origin"), "as before");
  const Outcome report =
      run_program({"report", training.path("run"), "--output", training.path("report.html")});
  EXPECT_EQ(report.code, 0) << report;
  EXPECT_THAT(training.directory().read("report.html"),
              HasSubstr("Micro-batches of each step by data-parallel rank (as before)"));
}

TEST(RankShares, WhatCannotBeIsRefused) {
  const TinyTraining training;
  const auto expect = [&](const Arguments& more, const char* part) {
    const Outcome outcome = run_program(training.command("refused", kNineSteps + more));
    EXPECT_EQ(outcome.code, 2) << outcome;
    EXPECT_THAT(outcome.errors, HasSubstr(part));
  };
  expect(shares("3,2", "2"), "give a multiple of 5 as --gradient-accumulation-steps");
  expect(shares("3,1,1", "2"), "--rank-shares has 3 numbers, but there are 2");
  expect(shares("auto", "1"), "raise --gradient-accumulation-steps");
  expect({"--rank-shares", "1"}, "only one data-parallel rank");
  expect(shares("3,1", "2") + Arguments{"--record-hashes"}, "--record-hashes");
  expect(shares("3,1", "2") + kSchedule, "--accumulation-schedule");
  expect(shares("3,1", "2") + Arguments{"--gradient-reduction", "micro-batch"},
         "--gradient-reduction micro-batch");
}

}  // namespace
}  // namespace terrace
