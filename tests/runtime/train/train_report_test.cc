#include "runtime/train/train_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <vector>

#include "base/bytes.h"
#include "tests/runtime/temporary_directory.h"

namespace terrace {
namespace {

TEST(TrainReport, AResumeOnAnotherDeviceIsNamed) {
  CheckpointProgress progress;
  progress.step = 7;
  EXPECT_EQ(describe_resume(progress, "cuda", "A"), "resumed after step 7") << "not known";
  progress.device = "cpu";
  EXPECT_EQ(describe_resume(progress, "cpu", "A"), "resumed after step 7");
  const std::string text = describe_resume(progress, "cuda", "A");
  EXPECT_NE(text.find("resumed after step 7\n"), std::string::npos) << text;
  EXPECT_NE(
      text.find("computed with --device cpu, the next one will be computed with --device cuda"),
      std::string::npos)
      << text;
}

TEST(TrainReport, AResumeByOtherArithmeticIsNamed) {
  CheckpointProgress progress;
  progress.step = 7;
  progress.device = "cpu";
  EXPECT_EQ(describe_resume(progress, "cpu", "B"), "resumed after step 7") << "not known";
  progress.arithmetic = "A";
  EXPECT_EQ(describe_resume(progress, "cpu", "A"), "resumed after step 7");
  EXPECT_EQ(
      describe_resume(progress, "cpu", "B"),
      "resumed after step 7\nthat step was computed by A, the next one will be computed by B: the "
      "results may differ in their last bits from a run that stays where it began");
}

TEST(TrainReport, AStoppedRunIsToldHowToGoOn) {
  const TrainCommand command = {{}, {"/opt/my programs/terrace", "train"}};
  EXPECT_EQ(describe_stop(SIGINT, 3, 20, command, "runs/it's"),
            "stopped by SIGINT after step 3 of 20; to go on: '/opt/my programs/terrace' train "
            "--config 'runs/it'\\''s/config.toml' --resume auto");
}

TEST(TrainReport, SaysHowMuchOfTheDataARunGoesThrough) {
  const TemporaryDirectory directory;
  DatasetOptions options;
  options.data = {directory.write("text.txt", std::string(1000, 'a'))};
  options.vocabulary = 256;
  options.sequence_length = 9;
  options.validation_fraction = 0.1;
  EXPECT_EQ(
      describe_data(Dataset(options), {20, 80, 4, {6}, 0}),
      "data: 900 tokens (bytes of text) to train on, 99 samples; 100 to validate on; 20 steps "
      "go through 0.808 epochs\nevaluation, after the last step: 6 of 11 samples, as much "
      "computation as 0.5 steps (--eval-samples)");
  options.validation_fraction = 0;
  EXPECT_THAT(describe_data(Dataset(options), {20, 80, 4, {}, 0}),
              testing::EndsWith("\nno evaluation"));
  options.validation_data = {
      {"short", {directory.write("short.txt", "twenty letters in all")}},
      {"long", {directory.write("long.txt", std::string(100, 'a'))}},
  };
  const std::string text = describe_data(Dataset(options), {20, 80, 4, {3, 6}, 0});
  EXPECT_THAT(text, testing::HasSubstr("; 121 to validate on;"));
  EXPECT_THAT(text, testing::HasSubstr("3 of 3 samples of short, 6 of 11 samples of long, as much "
                                       "computation as 0.75 steps"));
}

TEST(TrainReport, AStepTellsTheLossOfEachSetByItsName) {
  StepMetrics step;
  step.step = 2;
  step.validation = {{"", 1.5}, {"french", 2.25}};
  EXPECT_THAT(describe_step(step, 2),
              testing::EndsWith("  validation_loss 1.5000  validation_loss/french 2.2500"));
}

TEST(TrainReport, EachOfSeveralDrivesIsToldWhatGoesToIt) {
  StorePath path;
  path.engine = "io_uring";
  path.directory = "/one";
  path.used_bytes = 3 * kGiB;
  std::vector<StorePath> paths = {path};
  EXPECT_EQ(describe_store(paths, 1e12, 1), "\nnvme: /one by io_uring, buffered");
  path.directory = "/two";
  path.used_bytes = 1 * kGiB;
  paths.push_back(path);
  constexpr double kWritten = 4.0 * kGiB;
  EXPECT_EQ(describe_store(paths, kWritten, 1),
            "\nnvme: /one by io_uring, buffered; 75 % of the data written, 3.00 GiB a step"
            "\nnvme: /two by io_uring, buffered; 25 % of the data written, 1.00 GiB a step");
  EXPECT_NE(describe_store(paths, kWritten, 2).find("25 % of the data written by this rank, 1.00"),
            std::string::npos);
}

// Returns the summary of a step in which this lane is busy for longer than the step takes.
std::string summary_of(Lane busiest) {
  StepMetrics step;
  step.step_s = 2;
  step.totals.busy_s[static_cast<std::size_t>(Lane::kCompute)] = 1;
  step.totals.busy_s[static_cast<std::size_t>(busiest)] = 3;
  TimeSummary summary;
  summary.add(step);
  return summary.text(StepWaits(Program{}), 1);
}

// A receive counts as busy long before the other rank sends, so it is not what limits a step.
TEST(TrainReport, AMessageDoesNotLimit) {
  const std::string text = summary_of(Lane::kReceiveBack);
  EXPECT_NE(text.find("receive_back busy 150.0 %"), std::string::npos) << text;
  EXPECT_NE(text.find("limited by: the compute lane, busy 50 %"), std::string::npos) << text;
}

TEST(TrainReport, BytesOfSeveralRanksAreSaidToBeThat) {
  StepMetrics step;
  step.step_s = 2;
  step.totals.busy_s[static_cast<std::size_t>(Lane::kWrite)] = 1;
  step.totals.moved.lanes[static_cast<std::size_t>(Lane::kWrite)] = 1e9;
  TimeSummary summary;
  summary.add(step);
  const std::string of_two = summary.text(StepWaits(Program{}), 2);
  EXPECT_NE(of_two.find("of 2 ranks together"), std::string::npos) << of_two;
  EXPECT_NE(of_two.find("written to the drives by all ranks: "), std::string::npos) << of_two;
  const std::string alone = summary.text(StepWaits(Program{}), 1);
  EXPECT_EQ(alone.find("ranks"), std::string::npos) << alone;
}

std::string summary_of_waits(const std::vector<double>& waited_for_s) {
  StepMetrics step;
  step.step_s = 10;
  step.waits = {.waited_s = std::vector<double>(waited_for_s.size()), .waited_for_s = waited_for_s};
  TimeSummary summary;
  summary.add(step);
  return summary.text(StepWaits(Program{}), static_cast<int>(waited_for_s.size()));
}

// Three other ranks wait for 3.3 s in all, so each for 1.1 s of 10.
TEST(TrainReport, NamesTheRankThatMakesTheOthersWait) {
  const std::string text = summary_of_waits({0.1, 0, 0.2, 3.3});
  EXPECT_NE(text.find("rank 3 makes the others wait: their collectives waited for it 11 % of the"),
            std::string::npos)
      << text;
}

TEST(TrainReport, BlamesNoRankWhereAllWaitAlikeOrHardly) {
  const std::string alike = summary_of_waits({3, 2, 3, 2});
  EXPECT_EQ(alike.find("makes the others wait"), std::string::npos) << alike;
  EXPECT_NE(alike.find("wait for other ranks 25 % of the time, for no one rank most"),
            std::string::npos)
      << alike;
  const std::string hardly = summary_of_waits({0, 0, 0.1, 0});
  EXPECT_EQ(hardly.find("wait for other ranks"), std::string::npos) << hardly;
  EXPECT_EQ(hardly.find("makes the others"), std::string::npos) << hardly;
}

TEST(TrainReport, TheBusiestLaneIsNamedAndWhetherItMayOnlyWait) {
  const std::string collective = summary_of(Lane::kCollective);
  const std::string drive = summary_of(Lane::kRead);
  EXPECT_NE(collective.find("the collective lane, busy 150 % of the time or waiting for another"),
            std::string::npos)
      << collective;
  EXPECT_NE(drive.find("the read lane, busy 150 % of the time"), std::string::npos) << drive;
  EXPECT_EQ(drive.find("another rank"), std::string::npos) << drive;
}

TEST(TrainReport, WithoutStepsItSaysWhatEndedTheRun) {
  const std::string text = TimeSummary().text(StepWaits(Program{}), 1);
  EXPECT_NE(text.find("--stop-after-step"), std::string::npos) << text;
}

}  // namespace
}  // namespace terrace
