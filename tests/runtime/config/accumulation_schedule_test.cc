#include "runtime/config/accumulation_schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "runtime/config/train_config.h"
#include "tests/runtime/temporary_directory.h"

namespace terrace {
namespace {

std::vector<AccumulationPhase> read(const std::string& text) {
  BatchOptions batch;
  read_accumulation_schedule(FlagValue("--accumulation-schedule", {text}), batch);
  return batch.accumulation_schedule;
}

std::string refusal_of(const std::vector<std::string>& flags) {
  std::vector<std::string> all = {"--model", "nano", "--data", "text"};
  all.insert(all.end(), flags.begin(), flags.end());
  try {
    parse_train_options(all);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no error";
}

TEST(AccumulationSchedule, IsReadAndWrittenAsItWas) {
  BatchOptions batch;
  batch.accumulation_schedule = read("8@1,16@2_001");
  EXPECT_EQ(batch.accumulation_schedule, (std::vector<AccumulationPhase>{{8, 1}, {16, 2001}}));
  EXPECT_EQ(accumulation_schedule_toml(batch), "\"8@1,16@2001\"");
  EXPECT_EQ(accumulation_schedule_toml({}), "");
}

TEST(AccumulationSchedule, WhatIsWrongIsNamed) {
  const auto expect = [](const char* text, const char* part) {
    EXPECT_THAT(refusal_of({"--accumulation-schedule", text}), testing::HasSubstr(part)) << text;
  };
  expect("8", "'8' has no @");
  expect("8@1,", "'' has no @");
  expect("8@2", "says nothing about the steps before 2");
  expect("8@1,4@1", "step 1 does not come after step 1");
  expect("8@1,4@9,2@5", "step 5 does not come after step 9");
  expect("0@1", "0");
  expect("8@x", "x");
}

TEST(AccumulationSchedule, SetsTheLargestNumberAndRefusesAnother) {
  const std::vector<std::string> flags = {
      "--model", "nano", "--data", "text", "--accumulation-schedule", "4@1,8@21,2@30"};
  EXPECT_EQ(parse_train_options(flags).batch.gradient_accumulation_steps, 8);
  EXPECT_THAT(refusal_of({"--accumulation-schedule", "4@1", "--gradient-accumulation-steps", "2"}),
              testing::HasSubstr("both say how many micro-batches a step has"));
  EXPECT_EQ(refusal_of({"--accumulation-schedule", "4@1", "--gradient-accumulation-steps", "4"}),
            "no error");  // as config.toml has it
  EXPECT_THAT(refusal_of({"--accumulation-schedule", "4@1", "--gradient-reduction", "micro-batch"}),
              testing::HasSubstr("--gradient-reduction"));
}

TEST(AccumulationSchedule, OnTheCommandLineTakesThePlaceOfAFilesNumber) {
  const TemporaryDirectory directory;
  const std::string with_number = directory.write("number.toml",
                                                  "model = \"nano\"\ndata = [\"text\"]\n"
                                                  "gradient_accumulation_steps = 2\n");
  const std::string with_schedule = directory.write("schedule.toml",
                                                    "model = \"nano\"\ndata = [\"text\"]\n"
                                                    "gradient_accumulation_steps = 4\n"
                                                    "accumulation_schedule = \"2@1,4@9\"\n");
  const auto batch_of = [](const std::vector<std::string>& flags) {
    return parse_train_options(flags).batch;
  };
  const BatchOptions grows =
      batch_of({"--config", with_number, "--accumulation-schedule", "1@1,8@5"});
  EXPECT_EQ(grows.gradient_accumulation_steps, 8);
  EXPECT_EQ(grows.accumulation_schedule.size(), 2U);
  const BatchOptions as_it_was = batch_of({"--config", with_schedule});
  EXPECT_EQ(as_it_was.gradient_accumulation_steps, 4);
  EXPECT_EQ(as_it_was.accumulation_schedule.size(), 2U);
  const BatchOptions constant =
      batch_of({"--config", with_schedule, "--gradient-accumulation-steps", "3"});
  EXPECT_EQ(constant.gradient_accumulation_steps, 3);
  EXPECT_TRUE(constant.accumulation_schedule.empty());
}

TEST(AccumulationSchedule, AutoTakesItsLargestNumberFromTheOtherFlag) {
  const TemporaryDirectory directory;
  const std::string file = directory.write("auto.toml",
                                           "model = \"nano\"\ndata = [\"text\"]\nmax_steps = 9\n"
                                           "gradient_accumulation_steps = 4\n"
                                           "accumulation_schedule = \"auto\"\n");
  const BatchOptions batch = parse_train_options({"--config", file}).batch;
  EXPECT_TRUE(batch.adapts_accumulation && batch.changes_accumulation());
  EXPECT_TRUE(batch.measures_gradient_noise);
  EXPECT_EQ(batch.gradient_accumulation_steps, 4);
  EXPECT_EQ(accumulation_schedule_toml(batch), "\"auto\"");
  const BatchOptions larger =
      parse_train_options({"--config", file, "--gradient-accumulation-steps", "8"}).batch;
  EXPECT_TRUE(larger.adapts_accumulation);
  EXPECT_EQ(larger.gradient_accumulation_steps, 8);
  const BatchOptions fixed =
      parse_train_options({"--config", file, "--accumulation-schedule", "2@1"}).batch;
  EXPECT_FALSE(fixed.adapts_accumulation);
  EXPECT_EQ(fixed.gradient_accumulation_steps, 2);
}

TEST(AccumulationSchedule, AutoNeedsALargestNumberAndANumberOfSteps) {
  const std::vector<std::string> flags = {"--accumulation-schedule", "auto", "--max-steps", "9"};
  EXPECT_THAT(refusal_of(flags), testing::HasSubstr("--gradient-accumulation-steps"));
  EXPECT_THAT(refusal_of({"--accumulation-schedule", "auto", "--gradient-accumulation-steps", "4"}),
              testing::HasSubstr("give --max-steps"));
}

TEST(AccumulationSchedule, CountsMicroBatches) {
  BatchOptions batch;
  batch.accumulation_schedule = {{4, 1}, {8, 21}, {2, 30}};
  constexpr auto kCounts =
      std::to_array<std::pair<int, int>>({{1, 4}, {20, 4}, {21, 8}, {29, 8}, {30, 2}, {99, 2}});
  for (const auto& [step, count] : kCounts) {
    EXPECT_EQ(micro_batches_of_step(batch, step), count) << step;
  }
  std::int64_t sum = 0;
  EXPECT_EQ(micro_batches_until(batch, 0), 0);
  for (std::int64_t step = 1; step < 40; ++step) {
    const std::int64_t before = sum;
    sum += micro_batches_of_step(batch, step);
    EXPECT_EQ(micro_batches_until(batch, step), sum);
    EXPECT_EQ(step_of_micro_batches(batch, sum), step);
    EXPECT_EQ(step_of_micro_batches(batch, before + 1), step);
  }
  EXPECT_EQ(step_of_micro_batches(batch, 0), 0);
  BatchOptions constant;
  constant.gradient_accumulation_steps = 3;
  EXPECT_EQ(micro_batches_until(constant, 7), 21);
  EXPECT_EQ(step_of_micro_batches(constant, 22), 8);
}

}  // namespace
}  // namespace terrace
